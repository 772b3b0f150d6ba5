"""What a baseline takes up, drops, and keeps of the better figures."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from graphdoctor.check.baseline import Accepted, Baseline, Entry, make
from graphdoctor.check.baseline_update import accept, prune
from graphdoctor.check.gate import Outcome, accepted_of
from graphdoctor.values.check import Fault
from graphdoctor.values.report import Report
from tests.support.checking import finding, project, report, target

change = msgspec.structs.replace
WAITS = report(finding(3, source="x.item()"), finding(5, source="y.item()"))


def accepted(found: Report, **figures: object) -> Accepted:
    now = accepted_of(Outcome(target(), found))
    assert now is not None
    return change(now, **figures)


def pruned(before: Accepted, found: Report) -> Accepted:
    old = make([], [before])
    return prune([Outcome(target(), found)], old, project(), is_complete=True).baseline.targets[
        "net"
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Two waits, no launches, one graph that holds all of the step.
        ({"syncs": 3, "launches": 4}, {"syncs": 2, "launches": 0}),
        ({"syncs": 1, "launches": 0}, {"syncs": 1, "launches": 0}),
        ({"coverage": 0.5, "graphs": 4}, {"coverage": 1.0, "graphs": 1}),
        ({"coverage": 1.0, "graphs": 4}, {"coverage": 1.0, "graphs": 1}),
        ({"verdict": "unsafe"}, {"verdict": "unsafe"}),
        ({"verdict": "safe"}, {"verdict": "safe"}),
    ],
)
def test_of_each_figure_the_better_is_kept(
    before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    now = pruned(accepted(WAITS, **before), WAITS)
    assert {name: getattr(now, name) for name in after} == after


def test_a_step_that_is_safe_now_is_accepted_as_safe() -> None:
    assert pruned(accepted(WAITS), report()).verdict == "safe"


def test_fewer_captured_launches_keep_the_graphs_that_held_more() -> None:
    lost = change(WAITS, captures=())
    now = pruned(accepted(WAITS, graphs=4), lost)
    assert (now.graphs, now.coverage) == (4, 1.0)


def test_figures_of_another_device_stay_as_they_are() -> None:
    before = accepted(WAITS, device="emulated", syncs=9)
    assert pruned(before, WAITS) == before


def entry(source: str, name: str = "net") -> Entry:
    return Entry("models/net.py", "GD101", source, name)


def test_what_comes_and_what_goes_is_counted() -> None:
    old = make([entry("gone()"), entry("x.item()"), entry("lost()")], [])
    outcomes = [Outcome(target(), WAITS)]
    taken = accept(outcomes, old, project(), is_complete=True)
    assert taken.baseline.entries == {entry("x.item()"), entry("y.item()")}
    assert (taken.added, taken.dropped) == (1, 2)
    assert taken.growth == ("net: GD101 in models/net.py: y.item()",)
    cut = prune(outcomes, old, project(), is_complete=True)
    assert cut.baseline.entries == {entry("x.item()")}
    assert (cut.added, cut.dropped, cut.growth) == (0, 2, ())
    assert cut.baseline.targets == {}  # figures that were never accepted


@pytest.mark.parametrize("update", [accept, prune])
@pytest.mark.parametrize(
    ("name", "is_complete", "stays"),
    [
        ("gone", True, False),
        ("gone", False, True),
        ("t.py::test", True, True),
        ("net", False, False),
    ],
)
def test_what_was_not_looked_at_stays(
    update: object, name: str, is_complete: bool, stays: bool
) -> None:
    old = make([entry("z.item()", name)], [accepted(WAITS, target=name, syncs=99)])
    assert callable(update)
    found: Baseline = update(
        [Outcome(target(), WAITS)], old, project(), is_complete=is_complete
    ).baseline
    assert (entry("z.item()", name) in found.entries) == stays
    assert (name in found.targets) == (stays or name == "net")


def test_a_target_that_failed_stays() -> None:
    old = make([entry("z.item()")], [accepted(WAITS)])
    failed = [Outcome(target(), Fault("failed", 3, "no"))]
    for update in (accept, prune):
        assert update(failed, old, project(), is_complete=True).baseline == old
