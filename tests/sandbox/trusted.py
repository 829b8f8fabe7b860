"""Functions that the tests run in a sandbox by their name."""

from __future__ import annotations


def add(left: int, right: int) -> int:
    return left + right
