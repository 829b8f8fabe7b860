"""Frames: any bytes at any split, and never more memory than what has come."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procsched._core import wire

payloads = st.one_of(
    st.binary(max_size=200),
    st.integers(wire._SMALL - 2, wire._SMALL + 2).map(lambda size: b"\xc5" * size),
    st.integers(100_000, 300_000).map(lambda size: bytes(size)),
)
frames = st.builds(
    wire.Frame,
    kind=st.integers(0, 255),
    flags=st.integers(0, 255),
    number=st.integers(0, 2**64 - 1),
    first=st.floats(allow_nan=False),
    second=st.floats(allow_nan=False),
    third=st.integers(0, 2**64 - 1),
    meta=st.binary(max_size=300),
    payload=payloads,
)


def encoded(frame: wire.Frame) -> bytes:
    parts = wire.encode(
        frame.kind,
        frame.number,
        frame.payload,
        flags=frame.flags,
        first=frame.first,
        second=frame.second,
        third=frame.third,
        meta=frame.meta,
    )
    return b"".join(bytes(part) for part in parts)


def decoded(decoder: wire.Decoder, pieces: list[bytes]) -> list[wire.Frame]:
    """Feed pieces as a reader would: into `target` where there is one, else through `feed`."""
    found = []
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest) and decoder.target is not None:
            count = min(len(rest), len(decoder.target))
            decoder.target[:count] = rest[:count]
            frame = decoder.filled(count)
            rest = rest[count:]
            if frame is not None:
                found.append(frame)
        if len(rest):
            found += decoder.feed(bytes(rest))
        if decoder.error is not None:
            raise decoder.error
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at the given places, in whatever order they are."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def plain(found: list[wire.Frame]) -> list[wire.Frame]:
    return [frame._replace(payload=bytes(frame.payload), meta=bytes(frame.meta)) for frame in found]


trust = st.sampled_from([1, 1000, wire._SMALL, wire._TRUSTED])
"""Bytes that are set aside at once; with little, the memory for a payload grows while it comes."""


@settings(max_examples=50)
@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 10_000_000), max_size=30), trust)
def test_frames_survive_any_cut(sent: list[wire.Frame], places: list[int], trusted: int) -> None:
    """However the stream is cut, the same frames come out, in order, and nothing is left over."""
    decoder = wire.Decoder()
    data = b"".join(map(encoded, sent))
    with mock.patch.object(wire, "_TRUSTED", trusted):
        assert plain(decoded(decoder, cut(data, places))) == sent
    assert not decoder.in_frame


@settings(max_examples=50)
@given(st.lists(frames, min_size=1, max_size=3), st.lists(st.integers(0, 10_000_000), max_size=10), trust)
def test_feed_alone_gives_the_same(sent: list[wire.Frame], places: list[int], trusted: int) -> None:
    """A reader that never looks at `target` gets the same frames."""
    decoder = wire.Decoder()
    pieces = cut(b"".join(map(encoded, sent)), places)
    with mock.patch.object(wire, "_TRUSTED", trusted):
        found = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert plain(found) == sent


calls = st.tuples(
    payloads, st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(0, 2**64 - 1), st.binary()
)


@given(st.integers(0, 2**60), st.lists(calls, max_size=5))
def test_the_calls_of_a_packet_come_out_as_frames(
    first: int, sent: list[tuple[bytes, float, float, int, bytes]]
) -> None:
    """Numbered on from the first, and to be begun only with a token."""
    data = b"".join(bytes(part) for part in wire.packet(first, sent))
    (frame,) = decoded(wire.Decoder(), [data])
    assert wire.open_packet(frame) == [
        wire.Frame(wire.CALL, wire.AHEAD, first + index, *facts, payload)
        for index, (payload, *facts) in enumerate(sent)
    ]


@given(frames, st.integers(0, 10_000_000))
def test_a_frame_that_is_not_whole_never_comes_out(frame: wire.Frame, end: int) -> None:
    """Of a frame whose end is missing nothing is seen but that it has begun."""
    data = encoded(frame)
    part = data[: end % len(data)]
    decoder = wire.Decoder()
    assert decoded(decoder, [part] if part else []) == []
    assert decoder.in_frame == bool(part)


@given(st.lists(frames, max_size=2), st.binary(max_size=3) | st.none())
def test_the_only_frame_is_one_that_is_whole_and_alone(sent: list[wire.Frame], more: bytes | None) -> None:
    """Two of them, or one with anything missing or behind it, are none."""
    data = b"".join(map(encoded, sent))
    data = data[:-1] if more is None else data + more
    found = wire.only_frame(data)
    assert ([] if found is None else plain([found])) == (
        plain(sent) if len(sent) == 1 and more == b"" else []
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_the_only_frame_or_none(tail: bytes) -> None:
    """Whatever is taken for one the decoder takes for the same."""
    data = wire.MAGIC.to_bytes(2, "little") + tail
    frame = wire.only_frame(data)
    assert frame is None or decoded(wire.Decoder(), [data]) == [frame]


@given(st.binary(min_size=2, max_size=200), st.lists(st.integers(0, 1000), max_size=10))
def test_what_is_no_frame_is_refused_at_once(data: bytes, places: list[int]) -> None:
    """Bytes that do not begin like a frame raise a WireError by their second byte, and never anything else."""
    decoder = wire.Decoder()
    if data[:2] == wire.MAGIC.to_bytes(2, "little"):
        return
    with pytest.raises(wire.WireError, match="no frame begins with"):
        decoded(decoder, cut(data, places))


@given(st.binary(max_size=400), st.lists(st.integers(0, 1000), max_size=10))
def test_any_header_is_a_frame_or_a_wire_error(tail: bytes, places: list[int]) -> None:
    """Whatever follows the magic number: frames, waiting for more, or a WireError."""
    decoder = wire.Decoder(cap=1 << 20)
    try:
        decoded(decoder, cut(wire.MAGIC.to_bytes(2, "little") + tail, places))
    except wire.WireError:
        pass


@pytest.mark.parametrize(
    ("meta", "size"), [(0, (1 << 20) + 1), (wire.META_CAP + 1, 0), (2**32 - 1, 2**64 - 1)]
)
def test_a_length_over_the_cap_is_refused_before_anything_is_allocated(meta: int, size: int) -> None:
    """A header that announces more than the cap is refused with both lengths in the text."""
    header = wire.HEADER.pack(wire.MAGIC, wire.DONE, 0, meta, size, 1, 0.0, 0.0, 0)
    with pytest.raises(wire.WireError, match=f"{size} bytes .{meta} of meta data. is over the cap"):
        decoded(wire.Decoder(cap=1 << 20), [header])


def test_what_came_before_a_broken_frame_still_counts() -> None:
    """Frames that are whole come out of the same piece in which the garbage follows."""
    frame = wire.Frame(wire.DONE, 0, 7, 0.0, 0.0, 0, b"", b"result")
    decoder = wire.Decoder()
    assert decoder.feed(encoded(frame) + b"garbage") == [frame]
    assert "no frame begins with" in str(decoder.error)


def test_a_large_payload_is_read_into_its_place() -> None:
    """While a large payload is missing, `target` is exactly the memory for the rest."""
    data = encoded(wire.Frame(wire.DONE, 0, 7, 0.0, 0.0, 0, b"m", b"y" * 1_000_000))
    decoder = wire.Decoder()
    assert list(decoder.feed(data[:1000])) == []
    assert decoder.target is not None
    assert len(decoder.target) == len(data) - 1000
    decoder.target[:] = data[1000:]
    frame = decoder.filled(len(data) - 1000)
    assert frame is not None
    assert (frame.number, frame.meta, bytes(frame.payload)) == (7, b"m", b"y" * 1_000_000)
    assert decoder.target is None


def test_a_large_payload_is_not_copied_when_written() -> None:
    """The parts of a large frame contain the payload itself."""
    payload = bytearray(1_000_000)
    parts = wire.encode(wire.CALL, 1, payload)
    assert parts[-1] is payload


def test_a_claim_costs_no_memory() -> None:
    """A header alone, whatever it announces below the cap, makes the reader set aside 64 MB at most."""
    import tracemalloc

    header = wire.HEADER.pack(wire.MAGIC, wire.DONE, 0, 0, 1 << 32, 1, 0.0, 0.0, 0)
    tracemalloc.start()
    try:
        decoder = wire.Decoder()
        assert list(decoder.feed(header)) == []
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 65 << 20


NUMBERS = st.integers() | st.integers(-(1 << 20_000), 1 << 20_000) | st.floats(allow_nan=False)
PROGRESS_LIKE = st.text("=0123456789abcdefx.p+- ", max_size=40).map(str.encode)


@given(NUMBERS, NUMBERS | st.none(), st.text(st.characters(), max_size=50))
def test_progress_is_read_as_it_was_written(done: float, total: float | None, note: str) -> None:
    """Also an int of more digits than may be printed, and halves of characters."""
    opened = wire.open_progress(wire.progress(done, total, note))
    assert opened == (done, total, note)
    assert [type(value) for value in opened] == [type(done), type(total), str]


@given(st.binary(max_size=40) | PROGRESS_LIKE)
def test_any_payload_is_progress_or_a_wire_error(payload: bytes) -> None:
    """What a worker was made to write is never looked into by pickle."""
    try:
        done, total, note = wire.open_progress(payload)
    except wire.WireError:
        return
    assert type(done) in (int, float)
    assert type(total) in (int, float, type(None))
    assert type(note) is str
