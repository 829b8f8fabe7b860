"""The reference shows what there is: mkdocstrings leaves out what a class inherits, unless a page names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import procsched
from procsched.child.current import CurrentRun
from procsched.executor import _Submitter
from procsched.scheduler.control import Control

PAGES = Path(__file__).resolve().parents[2] / "docs" / "pages" / "reference"
CONSTANTS = {"DEFAULT_RETRY", "NO_RETRY"}  # mentioned where they are defaults


def shown() -> dict[str, str]:
    """Return what each page shows of procsched: the name, and the options below it."""
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    return dict(re.findall(r"^::: procsched\.(\w+)\n((?: {4}.*\n)*)", text, re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    """What can be imported is described on one of its pages."""
    assert sorted(set(procsched.__all__) - CONSTANTS - shown().keys()) == []


def test_what_current_run_returns_is_in_the_reference() -> None:
    """`CurrentRun` is no public name, but what it can do is for those who write actions."""
    text = (PAGES / "scheduler.md").read_text(encoding="utf-8")
    assert f"::: {CurrentRun.__module__}.{CurrentRun.__qualname__}\n" in text


@pytest.mark.parametrize(("name", "base"), [("Scheduler", Control), ("ProcessExecutor", _Submitter)])
def test_inherited_methods_are_in_the_reference(name: str, base: type) -> None:
    """That a public class is made in layers is no business of its users."""
    listed = set(re.findall(r"\w+", shown()[name].partition("inherited_members:")[2]))
    assert listed == {method for method in vars(base) if method[0] != "_"}
