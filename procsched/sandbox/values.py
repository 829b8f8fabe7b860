"""Reading plain data of which anybody may be the author, and showing it. Pure.

It imports nothing that could load an object: what an untrusted process wrote is text here until every rule below has
been checked. `plain.py` says what plain data is, and writes it.
"""

from __future__ import annotations

import json
import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from math import isfinite

from procsched.sandbox.plain import MARK, MOST_DEPTH, MOST_DIGITS, PlainError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_DIGITS = re.compile(rb"[0-9]{%d}" % (MOST_DIGITS + 1))
# A text, or one that does not end: each byte is looked at once, whatever the input.
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


# -- reading -----------------------------------------------------------------------------------------------------------


def check_shape(data: bytes, most_nodes: int) -> None:
    """Refuse a JSON text that would be too much to parse: too many values, too deep, numbers too long.

    Looks at bytes only, so it takes a time that grows with their number and no memory to speak of.

    Raises:
        PlainError: saying which.
    """
    # Each value but the outermost stands behind a comma or a bracket. This counts what is within texts as well.
    nodes = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if nodes > most_nodes:
        bare = _TEXT.sub(b"", data)
        nodes = 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        nodes -= bare.count(b"[]") + bare.count(b"{}")  # brackets behind which there is none
        nodes -= min(data.count(b'{"$bytes":'), bare.count(b"{:}"))  # bytes: one value, written as two
        if nodes > most_nodes:
            raise PlainError(f"holds up to {nodes} values, and {most_nodes} at most are taken")
    if _DIGITS.search(data) and _DIGITS.search(_TEXT.sub(b"", data)):
        raise PlainError(f"holds a number of more than {MOST_DIGITS} digits")
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH + 1:
        depth = 0
        for byte in _TEXT.sub(b"", data).translate(None, _NOT_BRACKETS):
            depth += 1 if byte in b"[{" else -1
            if depth > MOST_DEPTH + 1:
                raise PlainError(f"is nested deeper than {MOST_DEPTH} levels")


def load(data: bytes, most_nodes: int) -> Any:
    """Return the plain data of a JSON text that anybody may have written.

    Raises:
        PlainError: it is none, or against one of the rules; whatever it is, nothing else is raised.
    """
    check_shape(data, most_nodes)
    try:
        return _decoder.decode(data.decode())
    except PlainError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise PlainError(f"is no plain data: {type(error).__name__}: {error!s:.200}") from None


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    made = {}
    for key, value in pairs:
        if key.startswith("$"):
            if key == MARK and len(pairs) == 1 and type(value) is str:
                return _bytes(value)
            if not key.startswith("$$"):
                raise PlainError(f"has the key {key!r:.100}, which nothing writes")
            key = key[1:]
        made[key] = value
    if len(made) != len(pairs):
        raise PlainError("has a key twice")
    for key in made:
        _refuse_surrogates(key)
    return made


def _bytes(text: str) -> bytes:
    try:
        return a2b_base64(text.encode("ascii"), strict_mode=True)
    except (Base64Error, UnicodeEncodeError):
        raise PlainError("holds bytes that are no base64") from None


def _refuse_constant(name: str) -> None:
    raise PlainError(f"holds {name}, which is no JSON")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise PlainError("holds a number beyond what a float can be")
    return value


def _refuse_surrogates(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PlainError("holds half of a surrogate pair") from None


class _Decoder(json.JSONDecoder):
    """The library's parser, with our rules where it has none: for keys, numbers and texts."""

    def decode(self, text: str) -> Any:  # type: ignore[override]
        value = super().decode(text)
        if "\\u" in text or "\\U" in text:  # UTF-8 has none: only an escape can make half of a pair
            _refuse_surrogates_in(value)
        return value


def _refuse_surrogates_in(value: Any) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is str:
            _refuse_surrogates(each)
        elif type(each) is list:
            waiting += each
        elif type(each) is dict:
            waiting += each.values()


_decoder = _Decoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_refuse_constant)


# -- showing -----------------------------------------------------------------------------------------------------------

# Control characters, those that change the direction of what follows, invisible ones, and halves of pairs: they can
# make a terminal or a log say what the program did not. First and last of each range.
_RANGES: Final = (
    *((0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E)),
    *((0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0xD800, 0xDFFF), (0xFEFF, 0xFEFF)),
    *((0xFFF9, 0xFFFB), (0xE0000, 0xE0FFF)),
)
_UNSHOWN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES) + "]")
_escapes: dict[int, str] = {}  # what stands for each of them; made when the first one is met


def printable(text: str) -> str:
    """Return a text of an untrusted process so that it can be shown: as it is, with what could mislead escaped."""
    if _UNSHOWN.search(text) is None:
        return text
    if not _escapes:
        _escapes.update(
            (number, _escape(number)) for first, last in _RANGES for number in range(first, last + 1)
        )
    return text.translate(_escapes)  # a function called for each would take ten times as long


def one_line(text: str) -> str:
    """Return such a text on one line."""
    return on_one_line(printable(text))


def on_one_line(text: str) -> str:
    """Return a text that is `printable` on one line."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def _escape(number: int) -> str:
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )
