"""Parcels within one process: what becomes one, what is in it, and that no descriptor is lost on any way."""

from __future__ import annotations

import array
import functools
import os
import pickle
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from procsched import _parcels, _system
from procsched._core.models import Sealed
from procsched._parcels import LARGE
from procsched.workers import packing
from tests import faults

pytestmark = pytest.mark.skipif(not _system.offers("memfd"), reason="this system has no memfd")


def dump(value: object, sink: _parcels.Sink, take: Any) -> Any:
    pickler = pickle.Pickler(sink, 5, buffer_callback=take)
    pickler.dump(value)
    return pickler


def pack(value: object, **options: Any) -> Any:
    return _parcels.pack(functools.partial(dump, value), **options)


def arrived(parcel: Any) -> _parcels.Arrived:
    return _parcels.Arrived(os.dup(parcel.fd))


class View:
    """Hands out a buffer of its own."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        return View, (pickle.PickleBuffer(memoryview(self.data)),)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("value", [1, "text", [1, 2], b"x" * (LARGE - 100), {"a": "é" * 70_000}])
def test_what_is_small_is_a_plain_pickle(value: object) -> None:
    """The same bytes as `pickle.dumps` gives where no piece is large, and such as can be loaded where one is."""
    packed = pack(value)
    assert type(packed) is bytes
    assert pickle.loads(packed) == value


@pytest.mark.parametrize(
    "value",
    [
        b"x" * LARGE,
        bytearray(b"x" * LARGE),
        "€" * LARGE,
        [b"x" * (LARGE // 2), b"y" * (LARGE // 2)],
        list(range(LARGE)),
        {"deep": [{"down": b"z" * (9 << 20)}]},
    ],
)
def test_what_is_large_is_a_parcel(value: object) -> None:
    """It opens again and again, each time to objects of its own; and from the fallback as well."""
    parcel = pack(value)
    assert len(parcel) >= LARGE
    came = arrived(parcel)
    assert len(came) == len(parcel)
    for opened in (came.load(), came.load(), parcel.load(), pickle.loads(pickle.dumps(came)).load()):
        assert opened == value
        assert type(opened) is type(value)


def test_only_buffers_that_were_arrays_lie_in_the_memory() -> None:
    """Bytes and bytearrays stay what they are, also behind a view, and so does whatever is small."""
    many = array.array("d", bytes(LARGE))
    value = [View(many), View(bytearray(LARGE)), View(bytes(LARGE)), View(many[:10])]
    kinds = [type(each.data) for each in arrived(pack(value)).load()]
    assert kinds == [memoryview, bytearray, bytes, bytearray]


def test_what_is_written_into_one_opening_is_not_in_the_next() -> None:
    """The first lies in the memory itself, and is still private."""
    np = pytest.importorskip("numpy")
    came = arrived(pack(np.zeros(LARGE)))
    first = came.load()
    first += 1
    second = came.load()
    assert (second == 0).all()
    second += 5
    assert (first == 1).all()
    assert (came.load() == 0).all()


def test_the_memory_cannot_be_changed() -> None:
    """Neither shrunk, nor grown, nor written, nor mapped for that."""
    import mmap

    parcel = pack(b"x" * LARGE)
    for change in (
        lambda: os.ftruncate(parcel.fd, 1),
        lambda: os.ftruncate(parcel.fd, 1 << 30),
        lambda: os.pwrite(parcel.fd, b"y", 0),
        lambda: mmap.mmap(parcel.fd, 0),
    ):
        with pytest.raises(PermissionError):
            change()


def test_memory_that_is_not_sealed_is_refused_and_closed() -> None:
    """Whoever sent it could end the reader by SIGBUS."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, LARGE)
    with pytest.raises(ValueError, match="not sealed"):
        _parcels.Arrived(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_mapping_keeps_no_descriptor() -> None:
    """There may be thousands of results."""
    before = len(os.listdir("/proc/self/fd"))
    parcel = pack(b"x" * LARGE)
    kept = [arrived(parcel) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert kept[-1].load() == b"x" * LARGE


def test_each_call_gets_its_own(pair: tuple[socket.socket, socket.socket]) -> None:
    """What was sent for an earlier call, and not wanted any more, is closed."""
    ours, theirs = pair
    one, two = pack(b"1" * LARGE), pack(b"2" * LARGE)
    before = len(os.listdir("/proc/self/fd"))
    _parcels.send(ours, 1, one.fd)
    _parcels.send(ours, 2, one.fd)
    _parcels.send(ours, 3, two.fd)
    assert _parcels.Arrived(_parcels.receive(theirs, 3)).load() == b"2" * LARGE
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_not_sent_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nobody waits for it."""
    with pytest.raises(OSError, match="could not be sent"):
        _parcels.receive(pair[1], 1)


@pytest.mark.parametrize("value", [b"x" * LARGE, View(array.array("d", bytes(LARGE)))])
def test_where_there_is_no_memory_it_goes_through_the_socket(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    """No memfd, no descriptor, or a limit on the size of files."""

    def check() -> None:
        packed = pack(value)
        if type(packed) is bytes:
            assert pickle.loads(packed) == value
        else:
            assert packed.fd == -1
            assert packed.data

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, limits[1]))
    try:
        check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setenv("PROCSCHED_WITHOUT", "memfd")
    check()


def test_the_word_is_looked_for_in_what_the_pickler_wrote() -> None:
    """Not in large data, which takes long, and where it says nothing."""

    def mentions(*values: object) -> bool:
        sink = _parcels.Sink()
        dump(values, sink, lambda _buffer: True)
        return sink.mentions(b"_main__")

    noise = b"_main__" * LARGE
    assert not mentions(noise)
    assert not mentions(noise, bytearray(noise), noise.decode())
    assert mentions(noise, "_main__")
    assert mentions("_main__", noise)
    assert mentions([str(n) for n in range(100_000)], "_main__")


def test_a_call_with_large_data_goes_by_name() -> None:
    """Large arguments are found among small ones, at any depth, and the function still goes by its name."""
    for args in ((b"x" * LARGE,), ("x" * LARGE,), ([[b"x" * LARGE]],), ({"a": b"x" * LARGE},)):
        packed = packing.pack(faults.add, args, {})
        assert isinstance(packed, _parcels.Parcel)
        assert packed.load() == (faults.add, args, {})
        assert isinstance(packing.pack(faults.add, (), {"key": args}), _parcels.Parcel)
        assert isinstance(packing.pack(functools.partial(faults.add, *args), (), {}), _parcels.Parcel)
        assert type(packing.pack(faults.add, args, {}, apart=False)) is bytes


def test_a_sealed_parcel_is_opened_like_any_result() -> None:
    """`Sealed` asks what it holds to load itself, and knows its length."""
    came = arrived(pack([b"x" * LARGE]))
    assert Sealed(came).open() == [b"x" * LARGE]
    assert len(Sealed(came).data) > LARGE
