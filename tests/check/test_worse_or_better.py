"""Figures before and after a change: which way they went, and what a check says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from graphdoctor.check.compare import compare
from graphdoctor.check.settings.settings import Budgets
from graphdoctor.check.step_figures import beyond_baseline, beyond_budget, improvements
from graphdoctor.values.check import FigureChange, Figures
from graphdoctor.values.figures import Range
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Estimate
from tests.support.checking import finding, report
from tests.support.reports import ESTIMATE, MEASUREMENT, PARTLY_SAFE

change = msgspec.structs.replace
NOW = Figures(syncs=2, launches=100, graphs=2, coverage=0.5)


def changes(before: Report, after: Report) -> dict[str, FigureChange]:
    (target,) = compare({"net": before}, {"net": after}, names=("a", "b")).targets
    return {one.name: one for one in target.figures}


def estimated(**fields: Any) -> Report:
    return change(PARTLY_SAFE, estimate=change(ESTIMATE, **fields))


def waits(count: int) -> Report:
    return report(*(finding(line, source=f"x{line}.item()") for line in range(1, count + 1)))


@pytest.mark.parametrize(("before", "after", "better"), [(1, 2, False), (2, 1, True)])
def test_fewer_waits_are_better(before: int, after: int, better: bool) -> None:
    found = changes(waits(before), waits(after))["syncs"]
    assert (found.before, found.after, found.is_better) == (str(before), str(after), better)


@pytest.mark.parametrize(("before", "after", "better"), [(80, 1200, False), (1200, 80, True)])
def test_fewer_launches_are_better(before: int, after: int, better: bool) -> None:
    found = changes(estimated(launches=before), estimated(launches=after))["launches"]
    assert (found.before, found.after, found.is_better) == (f"{before:,}", f"{after:,}", better)


def test_more_launches_in_graphs_are_better() -> None:
    (kept,) = [region for region in PARTLY_SAFE.regions if region.worthwhile][:1]

    def covered(launches: int) -> Report:
        regions = (change(kept, name="A", launches=launches),)
        return change(estimated(launches=100), regions=regions)

    assert changes(covered(50), covered(60))["coverage"].is_better is True
    assert changes(covered(60), covered(50))["coverage"].is_better is False
    assert changes(covered(50), covered(60))["coverage"].before == "50.0%"
    assert "coverage" not in changes(covered(50), covered(50))


@pytest.mark.parametrize(
    ("attribute", "name", "more_is_better"),
    [("eager_us", "eager time", False), ("graph_us", "graph time", False),
     ("speedup", "speedup", True)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("before", "after", "is_more"),
    [
        (Range(1, 2, 3), Range(4, 5, 6), True),
        (Range(4, 5, 6), Range(1, 2, 3), False),
        (Range(1, 2, 3), Range(3, 4, 5), None),
        (Range(3, 4, 5), Range(1, 2, 3), None),
    ],
)
def test_predictions_are_told_apart_where_their_ranges_are(
    attribute: str, name: str, more_is_better: bool, before: Range, after: Range, is_more: bool
) -> None:
    found = changes(estimated(**{attribute: before}), estimated(**{attribute: after}))
    expected = None if is_more is None else is_more == more_is_better
    assert found[f"{ESTIMATE.basis} {name}"].is_better is expected


def test_a_prediction_that_only_one_side_has_is_neither() -> None:
    none: Estimate | None = None
    found = changes(change(PARTLY_SAFE, estimate=none), estimated())
    assert found[f"{ESTIMATE.basis} speedup"].before == "none"
    assert found[f"{ESTIMATE.basis} speedup"].is_better is None


@pytest.mark.parametrize(
    ("low", "high", "better"), [(2.1, 2.5, True), (1.1, 1.4, False), (1.4, 2.1, None),
                                (2.0, 2.5, None), (1.0, 1.5, None)],
)  # fmt: skip
def test_measurements_are_told_apart_where_their_intervals_are(
    low: float, high: float, better: bool | None
) -> None:
    def measured(low: float, high: float) -> Report:
        mid = (low + high) / 2
        one = change(MEASUREMENT, speedup=mid, speedup_low=low, speedup_high=high)
        return change(PARTLY_SAFE, measurement=one)

    found = changes(measured(1.5, 2.0), measured(low, high))
    assert found["measured speedup"].is_better is better


# Against a baseline, and against a budget.


@pytest.mark.parametrize(
    ("figures", "beyond", "better"),
    [
        ({}, [], 0),
        ({"syncs": 3}, ["syncs"], 0),
        ({"syncs": 1}, [], 1),
        ({"launches": 101}, ["launches"], 0),
        ({"launches": 99}, [], 1),
        # 120 launches of which 48 stay outside: fewer than the 50 of before.
        ({"launches": 120, "coverage": 0.6}, [], 1),
        ({"launches": 120, "coverage": 0.55}, ["launches"], 1),
        ({"graphs": 3}, ["graphs"], 0),
        ({"graphs": 3, "coverage": 0.51}, [], 1),
        ({"graphs": 1}, [], 0),
        ({"coverage": 0.49}, ["coverage"], 0),
        ({"coverage": 0.5 - 1e-12}, [], 0),
        ({"coverage": 0.5 + 1e-12}, [], 0),
    ],
)
def test_what_got_worse_than_the_baseline_and_what_better(
    figures: dict[str, Any], beyond: list[str], better: int
) -> None:
    now = change(NOW, **figures)
    assert [breach.figure for breach in beyond_baseline(now, NOW)] == beyond
    assert len(list(improvements(now, NOW))) == better


def test_sentences_say_by_how_much() -> None:
    (more,) = beyond_baseline(change(NOW, syncs=1, launches=1103), change(NOW, launches=100))
    assert more.message.startswith("1,103 launches") and "1,003 more than" in more.message
    (fewer,) = improvements(change(NOW, syncs=1), change(NOW, syncs=3))
    assert fewer.startswith("1 wait for the device") and "2 fewer than" in fewer


@pytest.mark.parametrize(
    ("budgets", "beyond"),
    [
        (Budgets(max_syncs=2, max_launches=100, max_graphs=2, min_coverage=0.5), []),
        (Budgets(max_syncs=1), ["syncs"]),
        (Budgets(max_syncs=0), ["syncs"]),
        (Budgets(max_launches=99), ["launches"]),
        (Budgets(max_graphs=1), ["graphs"]),
        (Budgets(min_coverage=0.51), ["coverage"]),
        (Budgets(min_coverage=0.5 + 1e-12), []),
        (Budgets(), []),
    ],
)
def test_a_budget_holds_at_its_very_figure(budgets: Budgets, beyond: list[str]) -> None:
    assert [breach.figure for breach in beyond_budget(PARTLY_SAFE, NOW, budgets)] == beyond
