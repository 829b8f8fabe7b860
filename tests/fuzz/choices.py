"""Decisions read from bytes, so that whoever makes up bytes makes up what happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FLOATS = (0.0, 1.0, -1.0, 1e-6, 1e300, -1e300, math.inf, -math.inf, math.nan)


class Choices:
    """Reads decisions from `data` until it has no more; then everything is 0, and `more` is false."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, limit: int) -> int:
        return self.byte() % limit

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def some(self) -> bytes:
        """Return up to 255 bytes."""
        return self.take(self.byte())

    def number(self) -> int:
        """Return a number that takes eight bytes, mostly a small one."""
        how = self.byte()
        return int.from_bytes(self.take(8).ljust(8, b"\0"), "little") if how == 255 else how % 8

    def float(self) -> float:
        return self.pick(FLOATS)

    def cut(self, data: bytes) -> list[bytes]:
        """Cut bytes into up to four pieces."""
        pieces = []
        for _ in range(self.below(4)):
            place = self.number() % (len(data) + 1)
            pieces.append(data[:place])
            data = data[place:]
        return [piece for piece in (*pieces, data) if piece]
