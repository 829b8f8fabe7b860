"""Which part of the matrix of users and layer sets is run where not all of it can be."""

from __future__ import annotations

import pytest

from tests.sandbox import hosts


@pytest.mark.parametrize("without", ["nothing", "root", "namespaces", "root or namespaces"])
def test_no_case_is_given_to_a_setting_that_is_not_here(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every case is run somewhere, in turn in each setting that there is; two settings differ as far as they can."""
    monkeypatch.setattr(hosts, "why_not", lambda *setting: "x" * any(part in without for part in setting))
    possible = {setting for setting in hosts.SETTINGS if not any(part in without for part in setting)}
    assert {setting for turn in range(4) for setting in hosts.chosen(turn, 1)} == possible
    for turn in range(4):
        assert len(hosts.chosen(turn, 1)) == 1
        two = hosts.chosen(turn, 2)
        assert len(set(two)) == min(2, len(possible))
        if len(possible) == 4:
            assert len({part for setting in two for part in setting}) == 4
