"""Findings of several targets as one list: what fails, and what a person reads first."""

from __future__ import annotations

from typing import get_args

import pytest

from graphdoctor.values.check import (
    Check,
    CheckedFinding,
    CheckedTarget,
    FailOn,
    Severity,
    fails,
    occurrences,
)
from tests.support.checking import finding


@pytest.mark.parametrize(
    ("fail_on", "failing"),
    [
        ("error", "error"),
        ("warning", "error warning"),
        ("note", "error warning note"),
        ("never", ""),
    ],
)
def test_what_is_as_bad_as_the_limit_or_worse_fails(fail_on: FailOn, failing: str) -> None:
    assert [one for one in get_args(Severity) if fails(one, fail_on)] == failing.split()


def found(
    fingerprint: str,
    *,
    severity: Severity = "error",
    is_new: bool = True,
    path: str = "a.py",
    line: int = 1,
    rule: str = "GD101",
) -> CheckedFinding:
    return CheckedFinding(finding(rule=rule), severity, is_new, path, line, fingerprint)


def check(**targets: tuple[CheckedFinding, ...]) -> Check:
    listed = tuple(CheckedTarget(name, "", findings=all_of) for name, all_of in targets.items())
    return Check(1, "check", "0.1.0", "error", 0, listed)


def test_what_is_new_comes_first_then_what_is_worse_then_by_place() -> None:
    in_order = (
        found("1"),
        found("2", rule="GD102"),
        found("0", line=2),
        found("3", path="b.py"),
        found("4", severity="warning"),
        found("5", severity="note"),
        found("6", is_new=False),
    )
    assert [one.checked for one in occurrences(check(net=in_order[::-1]))] == list(in_order)


def test_those_that_are_new_or_known_can_be_asked_for_alone() -> None:
    both = check(net=(found("new"), found("known", is_new=False)))
    listed = {
        is_new: [one.checked.fingerprint for one in occurrences(both, is_new=is_new)]
        for is_new in (True, False, None)
    }
    assert listed == {True: ["new"], False: ["known"], None: ["new", "known"]}


def test_a_line_that_several_targets_reach_comes_once_as_the_worst_of_them_has_it() -> None:
    known, mild, worst = (
        found("same", is_new=False), found("same", severity="note"), found("same", severity="warning"),
    )  # fmt: skip
    (one,) = occurrences(check(b=(known,), a=(mild,), c=(worst,)))
    assert one.checked == worst
    assert one.targets == ("a", "b", "c")


def test_of_equal_ones_the_first_target_by_name_is_shown() -> None:
    in_b, in_a = found("same", line=2), found("same", line=1)
    (one,) = occurrences(check(b=(in_b,), a=(in_a,)))
    assert one.checked == in_a
