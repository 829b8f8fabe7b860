"""The targets of the sandbox: any bytes from a process that is not trusted at all."""

from __future__ import annotations

import json
import math
from typing import Any

from procsched.sandbox.examining import (
    ANSWER_HEADER,
    Findings,
    examine,
    findings_of,
    length_of,
    open_findings,
    pack_findings,
)
from procsched.sandbox.frames import ENVELOPE, LEAST_CAP, OVER, READ_MOST, Reader, ViolationError
from procsched.sandbox.judging import failure_of
from procsched.sandbox.plain import MOST_DEPTH, PlainError, dump
from procsched.sandbox.policy import Sandbox
from procsched.sandbox.reports import open_report
from procsched.sandbox.values import load, one_line, printable
from tests.fuzz.choices import Choices

RESULT, NODES = 2000, 50
TEXTS = (
    b'{"kind":"done","id":1,"value":',
    b'{"kind":"raised","id":1,"type":"E","message":"m","traceback":"t"}',
    b'{"kind":"progress","done":1,"total":2,"note":""}',
    b'{"kind":"ready","layers":{"a":"b"},"cpu":0.5}',
    b'{"kind":"large","id":1,"size":9}',
    b'{"kind":"refused","step":"s","error":"e"}',
    b"[[[[[[[[",
    b"]]]]",
    b'{"$bytes":"YQ=="}',
    b'{"a":1,"a":2}',
    b"1e999",
    b"-0.0",
    b"9" * 4301,
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b"NaN",
    b"[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
    b"}",
    b",",
    b'"',
    b"\\",
)
_POLICY = Sandbox(result=RESULT, result_nodes=NODES)


def _body(choices: Choices) -> bytes:
    pieces = [
        choices.some() if choices.below(4) == 0 else choices.pick(TEXTS) for _ in range(choices.below(8))
    ]
    return b"".join(pieces)


def untrusted(data: bytes) -> None:
    """The reader gives frames of exact types within its caps, or a violation after which it takes nothing."""
    choices = Choices(data)
    reader = Reader(RESULT, NODES)
    if choices.below(4):
        body = TEXTS[3]
        for part in (len(body).to_bytes(4, "big"), body):
            reader.feed(part)
        reader.expect(1)
    while choices.more and reader.state != OVER:
        body = _body(choices)
        whole = choices.some() if choices.below(8) == 0 else len(body).to_bytes(4, "big") + body
        while whole:
            room = reader.room
            assert 0 <= room <= READ_MOST
            if not room:
                return
            piece, whole = whole[:room], whole[room:]
            assert len(reader._body) <= max(LEAST_CAP, RESULT + ENVELOPE)
            frame, violation = _feed(reader, piece)
            if violation is not None:
                assert violation.isprintable()
                assert reader.room == 0
                return
            if frame is not None:
                _check(frame)


def _feed(reader: Reader, piece: bytes) -> tuple[Any, str | None]:
    try:
        return reader.feed(piece), None
    except ViolationError as error:
        return None, str(error)


def outcome(data: bytes) -> None:
    """An outcome that is looked into elsewhere says the same there as here, and nothing that cannot be shown."""
    choices = Choices(data)
    body = _body(choices)
    found = examine(body, choices.take(64), 1, RESULT, NODES)
    packed = pack_findings(found)
    assert length_of(packed[:ANSWER_HEADER]) == len(packed) - ANSWER_HEADER
    again = open_findings(packed[ANSWER_HEADER:])
    for name in Findings.__slots__:
        value = getattr(found, name)
        assert getattr(again, name) == value
        assert type(value) is int or printable(value) == value
    reader = Reader(RESULT, NODES)
    for part in (len(TEXTS[3]).to_bytes(4, "big"), TEXTS[3]):
        reader.feed(part)
    reader.expect(1)
    if 2 <= len(body) <= RESULT:
        for part in (len(body).to_bytes(4, "big"), body):
            frame, violation = _feed(reader, part)
        if frame is not None and frame["kind"] == "progress":
            frame, violation = None, "it told of progress at too great a length"
        assert found.violation == (violation or "")
        assert found.kind == ("" if frame is None else frame["kind"])


def _check(frame: Any) -> None:
    assert type(frame) is dict
    if frame["kind"] == "raised":
        text, error = failure_of(findings_of(frame), _POLICY)
        assert "\n" not in text
        assert printable(str(error)) == str(error)
    if frame["kind"] == "done":
        assert _count(frame["value"], 0) <= NODES + 64


def _count(value: Any, depth: int) -> int:
    """Count values, and see that each is plain."""
    assert depth <= MOST_DEPTH
    if type(value) is list:
        return 1 + sum(_count(each, depth + 1) for each in value)
    if type(value) is dict:
        assert all(type(key) is str for key in value)
        return 1 + sum(_count(each, depth + 1) for each in value.values())
    assert value is None or type(value) in (bool, int, float, str, bytes)
    assert type(value) is not float or math.isfinite(value)
    assert type(value) is not str or value.encode() is not None
    return 1


def plain(data: bytes) -> None:
    """A text is plain data that can be written again and is the same then, or it is refused; and shown without harm."""
    choices = Choices(data)
    body = _body(choices)
    try:
        value = load(body, NODES)
    except PlainError:
        value = None
    else:
        _count(value, 0)
        assert load(dump(value, NODES), NODES) == value
        if b"$" not in body:
            assert json.loads(body) == value
    open_report(choices.take(24))
    text = data.decode("utf-8", "surrogateescape")
    assert printable(printable(text)) == printable(text)
    assert len(one_line(text).splitlines()) <= 1
