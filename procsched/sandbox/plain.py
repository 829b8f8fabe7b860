"""Plain data as JSON: what it is, and how it is written. Pure.

JSON data means None, True, False, int, finite float, str, list, dict with texts as keys; besides bytes, which travel
as ``{"$bytes": "<base64>"}``. A key of the user's that begins with "$" has another one put before it.

The same code runs in the parent and in every sandboxed process. There it is on the way to each start, so it does
without `json` and `re`, which take longer to import than all else together; what others wrote is read by `values.py`.
"""

from __future__ import annotations

try:
    from _json import encode_basestring, make_scanner
except ImportError:  # another interpreter
    from json.encoder import encode_basestring
    from json.scanner import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

MOST_DEPTH: Final = 64  # of a value; a frame around it is one level more
MOST_DIGITS: Final = 4300  # of an integer: reading one takes time that grows with the square of them
MARK: Final = "$bytes"
_LONGEST_INT: Final = 14_284  # bits of 4300 digits


class PlainError(ValueError):
    """A value is no plain data, or a text does not hold plain data; says which and where."""


# -- writing -----------------------------------------------------------------------------------------------------------


def dump(value: Any, most_nodes: int, what: str = "the value") -> bytes:
    """Return plain data as JSON.

    Raises:
        PlainError: something in it is no plain data; the message names it and says where it hangs.
    """
    parts: list[str] = []
    try:
        _write(value, 0, [most_nodes], parts.append)
    except _NotPlainError as error:
        where = "".join(reversed(error.path))
        raise PlainError(f"{what}{where} {error.text}") from None
    return "".join(parts).encode()


class _NotPlainError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str] = []  # innermost first


def _write(value: Any, depth: int, left: list[int], put: Callable[[str], None]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise _NotPlainError("is one value too many: there may not be so many in all")
    kind = type(value)
    if kind is str:
        put(_quoted(value))
    elif kind is int:
        if value.bit_length() > _LONGEST_INT:
            raise _NotPlainError(f"is an integer of more than {MOST_DIGITS} digits")
        put(int.__repr__(value))
    elif value is None:
        put("null")
    elif kind is bool:
        put("true" if value else "false")
    elif kind is float:
        if value - value != 0.0:  # infinite, or not a number
            raise _NotPlainError(f"is {value}, for which JSON has no word; make it a text, or None")
        put(float.__repr__(value))
    elif kind is bytes:
        from binascii import b2a_base64  # here: most have no bytes

        put(f'{{"{MARK}":"{b2a_base64(value, newline=False).decode()}"}}')
    elif kind is not list and kind is not dict:
        raise _NotPlainError(f"is of type {kind.__name__}, which cannot travel; {_ADVICE.get(kind, _OTHER)}")
    elif depth >= MOST_DEPTH:
        raise _NotPlainError(f"is nested deeper than {MOST_DEPTH} levels")
    elif kind is list:
        _write_list(value, depth, left, put)
    else:
        _write_dict(value, depth, left, put)


def _write_list(value: list[Any], depth: int, left: list[int], put: Callable[[str], None]) -> None:
    before = "["
    for index, part in enumerate(value):
        put(before)
        before = ","
        try:
            _write(part, depth + 1, left, put)
        except _NotPlainError as error:
            error.path.append(f"[{index}]")
            raise
    put("[]" if before == "[" else "]")


def _write_dict(value: dict[Any, Any], depth: int, left: list[int], put: Callable[[str], None]) -> None:
    before = "{"
    for key, part in value.items():
        if type(key) is not str:
            raise _NotPlainError(f"has the key {key!r:.100}, which is no text; write str(key)")
        put(before)
        before = ","
        try:
            put(_quoted("$" + key if key.startswith("$") else key))
            put(":")
            _write(part, depth + 1, left, put)
        except _NotPlainError as error:
            error.path.append(f"[{key!r:.100}]")
            raise
    put("{}" if before == "{" else "}")


def _quoted(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _NotPlainError("is a text with half of a surrogate pair, which UTF-8 cannot hold") from None
    return encode_basestring(text)


_OTHER: Final = "JSON data and bytes do: None, bool, int, float, str, list, dict"
_ADVICE: Final[dict[Any, str]] = {
    tuple: "make it a list",
    set: "make it a sorted list",
    bytearray: "make it bytes",
}


# -- reading one's own -------------------------------------------------------------------------------------------------


def read(text: str) -> Any:
    """Return the plain data of a text that `dump` has made. What others may have written is for `values.load`."""
    return _scan(text, 0)[0]


def _unmark(pairs: list[tuple[str, Any]]) -> Any:
    made = {}
    for key, value in pairs:
        if key.startswith("$"):
            if key == MARK:
                from binascii import a2b_base64

                return a2b_base64(value)
            key = key[1:]
        made[key] = value
    return made


class _Rules:
    """What the scanner asks for, as `json.JSONDecoder` has it."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_unmark)
    parse_float = float
    parse_int = int
    parse_constant = None


_scan: Final = make_scanner(_Rules())  # type: ignore[arg-type]
