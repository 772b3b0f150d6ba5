"""Which findings settings leave out, and what is said of comments that do nothing."""

from __future__ import annotations

import pytest

from graphdoctor.check.relative_paths import nearest_place
from graphdoctor.check.selection import selected, unused_comments
from graphdoctor.values.finding import IdleComment, Suppression
from graphdoctor.values.locations import Location
from graphdoctor.values.report import TargetInfo
from tests.support.checking import finding, project, report

PLACE = Location("models/net.py", 3)


def idle(rule: str = "GD101", kind: str = "unused", place: Location = PLACE) -> IdleComment:
    return IdleComment(place, rule, kind, f"ignore[{rule}] does nothing")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ("a", "a"),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("abcde", "a, b, c and 2 more"),
    ],
)
def test_three_targets_are_named_at_most(targets: str, told: str) -> None:
    reports = [
        report(target=TargetInfo(name, "net.py", "make()", "inference"), idle_comments=(idle(),))
        for name in targets
    ]
    assert unused_comments(reports) == [f"models/net.py:3: ignore[GD101] does nothing in {told}"]


def test_comments_are_told_by_file_and_line() -> None:
    later, other = Location("models/net.py", 20), Location("models/a.py", 30)
    comments = tuple(idle(place=place, kind="misplaced") for place in (later, PLACE, other))
    found = unused_comments([report(idle_comments=comments), None])
    assert [text.split(" ")[0] for text in found] == [
        "models/a.py:30:", "models/net.py:3:", "models/net.py:20:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "line", "is_told"),
    [("GD101", 3, False), ("gd101", 3, False), ("Host-Read", 3, False), ("GD101", 4, True),
     ("GD104", 3, True)],
)  # fmt: skip
def test_a_comment_that_leaves_something_out_somewhere_is_no_news(
    rule: str, line: int, is_told: bool
) -> None:
    used = report(finding(suppressed=Suppression("known", PLACE)), finding())
    here = report(idle_comments=(idle(rule, place=Location("models/net.py", line)),))
    assert bool(unused_comments([used, here])) == is_told


def test_a_setting_goes_by_the_nearest_file_of_the_project() -> None:
    library = "site-packages/lib/net.py"
    settings = project(per_file_ignores=(("models/*", ("GD101",)),))
    inside = finding(file=library, stack=(Location("models/net.py", 3), Location("main.py", 9)))
    outside = finding(file=library, stack=(Location("main.py", 9),))
    nowhere = finding(file=library)
    found = selected(report(inside, outside, nowhere), settings, otherwise="models/own.py")
    assert [one.suppressed is not None for one in found.findings] == [True, False, True]


def test_the_nearest_place_is_in_the_project_or_the_target_s_first_line() -> None:
    caller = Location("models/net.py", 12)
    deep = finding(file="python/ast.py", stack=(Location("<string>", 1), caller, PLACE))
    assert nearest_place(deep, otherwise="own.py") == caller
    assert nearest_place(finding(7), otherwise="own.py").line == 7
    assert nearest_place(finding(location=None), otherwise="own.py") == Location("own.py", 1)
