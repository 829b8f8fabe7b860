"""The reader of what untrusted processes write, and the plain data in it: rules, caps, and nothing else raised."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procsched.sandbox import examining, frames, packing, trial, values
from procsched.sandbox import plain as plain_data
from procsched.sandbox.frames import IDLE, LENGTH, OVER, RUNNING, Reader, ViolationError
from procsched.sandbox.plain import MOST_DEPTH, PlainError, dump
from procsched.sandbox.values import load, one_line, printable
from tests import support
from tests.unit.test_imports import PACKAGE, imports

NODES = 1000
READY = {"kind": "ready", "layers": {}, "cpu": 0.0}
LOADERS = {
    "pickle",
    "_pickle",
    "marshal",
    "shelve",
    "copyreg",
    "importlib",
    "yaml",
    "procsched.errors",
    "ctypes",
}


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH, "big") + body


def encoded(frame: Any) -> bytes:
    return framed(json.dumps(frame).encode())


def put(reader: Reader, data: bytes) -> list[frames.Frame]:
    """Give a reader bytes as a pipe would, and return the frames."""
    found = []
    while data and reader.room:
        piece, data = data[: reader.room], data[reader.room :]
        frame = reader.feed(piece)
        if frame is not None:
            found.append(frame)
    return found


def running(result: int = 10_000, nodes: int = NODES) -> Reader:
    """Return a reader of a process that was sent job 7."""
    reader = Reader(result, nodes)
    put(reader, encoded(READY))
    reader.expect(7)
    return reader


# --- nothing that loads objects --------------------------------------------------------------------------


def test_nothing_that_loads_objects_can_be_reached() -> None:
    """In the import graph of the reader within procsched there is no pickle, no marshal and no import by name."""
    waiting = ["procsched.sandbox.examining"]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = PACKAGE.joinpath(*module.split(".")[1:])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        for found in imports(file):
            if found.for_types:
                continue
            assert found.target not in LOADERS, f"{module} imports {found.target}"
            if found.target.startswith("procsched"):
                waiting.append(found.target)
    assert seen == {f"procsched.sandbox.{name}" for name in ("examining", "frames", "plain", "values")}


def test_nothing_that_loads_objects_is_loaded() -> None:
    """In an interpreter that imports the reader alone there is no pickle, whoever would have brought it along."""
    script = (
        "import sys; before = set(sys.modules); import procsched.sandbox.examining; "
        "print(sorted(set(sys.modules) - before))"
    )
    root = str(PACKAGE.parent)
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {root!r}); {script}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "procsched.sandbox.values" in loaded
    for name in ("pickle", "marshal", "shelve"):
        assert f"'{name}'" not in loaded


@pytest.mark.parametrize("module", [examining, frames, plain_data, values])
def test_no_builtin_that_runs_text_is_called(module: Any) -> None:
    """Neither `eval` nor any of its kin stands in the source."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"eval", "exec", "compile", "__import__", "getattr", "globals", "setattr", "open"}


# --- plain data ------------------------------------------------------------------------------------------


class Text(str):
    pass


def deep(levels: int, innermost: Any = None) -> Any:
    value: Any = innermost
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(10**4299),
        1.5,
        "",
        "a\u0000b\u2028\U0001f600",
        [],
        {},
        b"",
        bytes(range(256)),
        {"a": [1, {"b": b"c"}], "": None},
        {"$bytes": "YQ=="},
        {"$bytes": b"x", "$$": 1, "$": 2, "$other": 3},
        deep(MOST_DEPTH),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data_survives(value: Any) -> None:
    """What is plain comes back as it was, types included."""
    again = load(dump(value, 10**6), 10**6)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"x": [0, {1, 2}]}, "the value['x'][1] is of type set"),
        ((1,), "of type tuple"),
        ({1: 2}, "has the key 1"),
        ([float("nan")], r"the value[0] is nan"),
        (math.inf, "is inf"),
        (10**4300, "4300 digits"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        (Text("x"), "of type Text"),
        (object(), "of type object"),
        (deep(MOST_DEPTH + 1), "deeper than 64"),
        ([0] * 1001, "one value too many"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_named(value: Any, where: str) -> None:
    """Nothing is turned into a text or a list in silence: the error says what it is and where it hangs."""
    with pytest.raises(PlainError) as raised:
        dump(value, NODES)
    assert where in str(raised.value)


@pytest.mark.parametrize("part", [0, "", [], {}, b"", b"x", [1], {"a": 1}, {"a": "b"}, "[,{", ["{}", []]])
def test_both_sides_count_alike(part: Any) -> None:
    """What is few enough to be written is few enough to be read; one value more is too much for either."""
    each = _values(part)
    value = [part] * 100
    data = dump(value, 1 + 100 * each)
    assert load(data, 1 + 100 * each) == value
    for function, argument in ((dump, value), (load, data)):
        with pytest.raises(PlainError, match="value"):
            function(argument, 100 * each)


def _values(value: Any) -> int:
    parts = value if type(value) is list else value.values() if type(value) is dict else ()
    return 1 + sum(map(_values, parts))


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"9" * 4301,
        b"[" + b"-" + b"9" * 5000 + b"]",
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b'["\\ud83d"]',
        b'{"a": 1, "a": 2}',
        b'{"$bytes": "!"}',
        b'{"$bytes": "YQ"}',
        b'{"$bytes": "YQ==", "x": 1}',
        b'{"$bytes": 1}',
        b'{"$type": "os.system"}',
        b"[" * 100 + b"]" * 100,
        b"[" * 500_000,
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b"[" + b"[]," * NODES + b"[]]",
        b"[" + b"0," * 999 + b"0,0]",
        b"\xff",
        b"",
        b"1 2",
        b"[1,]",
        b"'a'",
        b'"\x01"',
        b"\x80\x04\x95.",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_nothing_writes_is_refused(data: bytes) -> None:
    """JSON that the library's parser would take, or choke on, and bytes that are none."""
    with pytest.raises(PlainError):
        load(data, NODES)


@pytest.mark.parametrize(
    "data", [b'"' + b"[{," * 5000 + b'"', b'{"a": "' + b"9" * 5000 + b'"}', b'"\\\\[[["']
)
def test_texts_are_no_structure(data: bytes) -> None:
    """Brackets, commas and digits within a text are neither values nor depth nor numbers."""
    assert load(data, NODES) == json.loads(data)


def test_surrogate_pairs_that_are_whole_are_texts() -> None:
    """Half a pair is refused; two halves that belong together are one character."""
    assert load(b'"\\ud83d\\ude00"', NODES) == "\U0001f600"


def test_deep_input_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's own guard depends on the recursion limit, which a host program may have raised."""

    def parse(_text: str) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(values._decoder, "decode", parse)
    for data in (b"[" * 66, b'{"a":' * 66, b'["' + b"\\" * 2000 + b'",' + b"[" * 66):
        with pytest.raises(PlainError, match="deeper"):
            load(data, NODES)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(plain)
def test_any_plain_data_survives(value: Any) -> None:
    """What can be written can be read, and is the same; by a process that was sent it as well."""
    written = dump(value, 10**6)
    assert load(written, 10**6) == value
    assert plain_data.read(written.decode()) == value


# --- frames ----------------------------------------------------------------------------------------------


def test_any_text_can_name_a_call() -> None:
    """What `current_run()` is to say is sent as a text, also where that is of a subclass, or no UTF-8: escaped."""

    class Named(str):
        __slots__ = ()

        def encode(self, *_args: Any) -> bytes:
            raise AssertionError

    message = packing.order(7, b'"name":"f"', [Named("id"), "half \udcff", 1, 2, 3.0])
    assert int.from_bytes(message[:LENGTH], "big") == len(message) - LENGTH
    order = plain_data.read(message[LENGTH:].decode())
    assert order == {"id": 7, "facts": ["id", "half \\udcff", 1, 2, 3.0], "name": "f"}


def test_a_run_from_its_start_to_its_end() -> None:
    """The frames of an ordinary run, in any pieces, and what comes behind the outcome is not taken."""
    reader = Reader(1000, NODES)
    assert put(reader, encoded(READY)) == [READY]
    assert reader.state == IDLE
    reader.expect(7)
    told = {"kind": "progress", "done": 1, "total": None, "note": "x"}
    done = {"kind": "done", "id": 7, "value": {"a": [1]}}
    assert put(reader, encoded(told) + encoded(done) + encoded(done)) == [told, done]
    assert reader.state == OVER
    assert reader.room == 0


def test_pieces_make_no_difference() -> None:
    """One byte at a time or all at once: the same frame at the same moment."""
    reader = running()
    data = encoded({"kind": "raised", "id": 7, "type": "E", "message": "m", "traceback": ""})
    for byte in data[:-1]:
        assert reader.feed(bytes((byte,))) is None
    assert reader.feed(data[-1:]) is not None


@pytest.mark.parametrize("size", [0, 1, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF, (128 << 10) + 1])
def test_a_length_beyond_the_cap_is_refused_at_once(size: int) -> None:
    """Before a byte of the body is read, and whatever the result may be."""
    reader = running(result=10)
    with pytest.raises(ViolationError, match="announced"):
        reader.feed(size.to_bytes(LENGTH, "big"))
    assert reader.room == 0


@pytest.mark.parametrize("result", [10, 1 << 20])
def test_no_more_is_buffered_than_the_cap(result: int) -> None:
    """What the reader asks for never adds up to more than one frame."""
    reader = running(result=result)
    cap = max(frames.LEAST_CAP, result + frames.ENVELOPE)
    reader.feed(cap.to_bytes(LENGTH, "big"))
    taken = 0
    while taken < cap - 1:
        room = min(reader.room, cap - 1 - taken)
        assert reader.feed(b"x" * room) is None
        taken += room
    assert reader.room == 1
    with pytest.raises(ViolationError):
        reader.feed(b"xx")


ANSWERS: dict[str, Any] = {
    "progress": {"kind": "progress", "done": 1, "total": 2, "note": ""},
    "done": {"kind": "done", "id": 7, "value": 1},
    "raised": {"kind": "raised", "id": 7, "type": "E", "message": "m", "traceback": "t"},
    "large": {"kind": "large", "id": 7, "size": 10_001},
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_idle_process_has_nothing_to_say(kind: str) -> None:
    """Before it is sent a job nothing is taken, and before it is ready nothing but that."""
    for before in ([], [READY]):
        reader = Reader(1000, NODES)
        for frame in before:
            put(reader, encoded(frame))
        with pytest.raises(ViolationError):
            put(reader, encoded(ANSWERS[kind]))


@pytest.mark.parametrize(
    "frame",
    [
        READY,
        {"kind": "refused", "step": "", "error": ""},
        {"kind": "done", "id": 8, "value": 1},
        {"kind": "done", "id": "7", "value": 1},
        {"kind": "done", "id": True, "value": 1},
        {"kind": "done", "value": 1},
        {"kind": "done", "id": 7},
        {"kind": "done", "id": 7, "value": 1, "more": 2},
        {"kind": "DONE", "id": 7, "value": 1},
        {"kind": ["done"], "id": 7, "value": 1},
        {"kind": None},
        {"id": 7, "value": 1},
        {**ANSWERS["raised"], "type": 1},
        {**ANSWERS["raised"], "type": "x" * 201},
        {**ANSWERS["raised"], "message": "x" * 10_001},
        {**ANSWERS["raised"], "traceback": "x" * 20_000},
        {**ANSWERS["progress"], "done": "1"},
        {**ANSWERS["progress"], "done": True},
        {**ANSWERS["progress"], "done": 1 << 63},
        {**ANSWERS["progress"], "note": "x" * 501},
        {**ANSWERS["large"], "size": -1 << 64},
        {**ANSWERS["large"], "size": -5},
        {**ANSWERS["large"], "size": 10_000},
        {"py/object": "os.system"},
        [1],
        None,
        "done",
    ],
)
def test_frames_that_are_none_are_refused(frame: Any) -> None:
    """Wrong keys, types, numbers or kinds; and nothing is listened to after that."""
    reader = running()
    with pytest.raises(ViolationError):
        put(reader, encoded(frame))
    assert reader.state == OVER
    assert reader.room == 0


def test_results_are_capped_in_bytes_and_values() -> None:
    """A result that its process should not have sent is none."""
    with pytest.raises(ViolationError, match="larger"):
        put(running(result=100), encoded({"kind": "done", "id": 7, "value": "x" * 500}))
    with pytest.raises(ViolationError, match="values"):
        put(running(result=100_000, nodes=10), encoded({"kind": "done", "id": 7, "value": [0] * 200}))


def test_results_that_look_like_objects_are_dictionaries() -> None:
    """Keys with which other formats make objects are keys."""
    value = {"__reduce__": ["os.system", "true"], "__class__": "x", "py/object": "y"}
    (frame,) = put(running(), encoded({"kind": "done", "id": 7, "value": value}))
    assert frame["value"] == value


@settings(max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_hurt(data: bytes, framed_first: bool) -> None:
    """Whatever is written, there is a frame, a violation, or the wish for more."""
    reader = running(result=200, nodes=20)
    said = ""
    try:
        put(reader, framed(data) if framed_first else data)
    except ViolationError as error:
        said = str(error)
    assert said.isprintable()
    assert not said or reader.room == 0
    assert reader.state in (RUNNING, OVER)


FRAGMENTS = st.sampled_from(
    [
        *(json.dumps(frame).encode() for frame in (READY, *ANSWERS.values())),
        b'{"kind":"done","id":7,"value":',
        *(b'[ ] { } , : 1 -1 1e999 NaN true null \\ " \\u \\ud800 $bytes kind done 9999999999'.split()),
    ]
)


@settings(max_examples=300)
@given(st.lists(FRAGMENTS, max_size=30))
def test_nothing_nearly_right_hurts(pieces: list[bytes]) -> None:
    """The same for bodies made of what frames are made of."""
    reader = running(result=200, nodes=20)
    try:
        put(reader, framed(b"".join(pieces)))
    except ViolationError:
        assert reader.room == 0


# --- showing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00e4 \U0001f600\n\ttext", "plain \u00e4 \U0001f600\n\ttext"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\rb\x08\x7f\x9b", "a\\x0db\\x08\\x7f\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u2028\u200b\ufeff\ud800", "\\u2028\\u200b\\ufeff\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_could_mislead_is_escaped(text: str, shown: str) -> None:
    """Terminals and logs are shown what was written, and do nothing that it asks for."""
    assert printable(text) == shown


def test_one_line_is_one_line() -> None:
    """An error cannot bring a second line into a log."""
    assert one_line("a\nERROR root: b\t") == "a\\nERROR root: b\\t"
    assert one_line("a\x85\x0b\x0c\x1c\u2029b").splitlines() == ["a\\x85\\x0b\\x0c\\x1c\\u2029b"]


@given(st.text())
def test_nothing_shown_moves_a_cursor(text: str) -> None:
    """Whatever the text, what is shown of it is printable but for line ends and tabs."""
    for character in printable(text):
        assert character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160)


# --- a trial ------------------------------------------------------------------------------------------------


class Getting:
    """Stands for a sandboxed program: it says what it is told to, and goes on to live."""

    environment: dict[str, str] = {}
    settings = b"{}"

    def __init__(self, says: bytes) -> None:
        self.says = says
        self.before = ""

    def command(self, task: int, answers: int, _output: int, _parent: int) -> list[str]:
        """Return what is started."""
        before = self.before.format(task=task)
        text = f"import os, time\n{before}\nos.write({answers}, {self.says!r}); time.sleep(100)"
        return [sys.executable, "-I", "-S", "-c", text]


def test_a_trial_sends_more_than_a_pipe_takes() -> None:
    """Many paths to read, or a user whose pipes are small for he has many: the whole of the settings is sent."""
    ready: Any = Getting(encoded({**READY, "layers": {"files": "landlock"}}))
    ready.settings = b"x" * 3_000_000
    ready.before = f"read = 0\nwhile read < {len(ready.settings)}: read += len(os.read({{task}}, 1 << 20))"
    assert trial.attempt(ready, None, 6 * support.TIMEOUT) == {"files": "landlock"}


def test_a_trial_waits_with_any_descriptors() -> None:
    """A program that has a thousand files open may have a sandbox."""
    ready: Any = Getting(encoded({**READY, "layers": {"files": "landlock"}}))
    with support.high_descriptors():
        assert trial.attempt(ready, None, 6 * support.TIMEOUT) == {"files": "landlock"}
