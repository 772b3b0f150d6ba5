"""The figures of a step, at the limits at which a check says that one is worse."""

from __future__ import annotations

import msgspec
import pytest

from graphdoctor.check.settings.settings import Budgets
from graphdoctor.check.step_figures import beyond_baseline, beyond_budget, figures_of
from graphdoctor.values.check import Figures
from graphdoctor.values.report import Report
from tests.support.reports import ESTIMATE, MEASUREMENT, PARTLY_SAFE, REGION, SAFE, VERIFIED

change = msgspec.structs.replace
NOW = Figures(syncs=0, launches=30, graphs=1, coverage=0.5)


def partly(launches: int | None) -> Report:
    """A region of 5 operators and 10 launches, of a step of 20 operators, as a graph."""
    estimate = change(ESTIMATE, launches=launches) if launches is not None else None
    kept = change(REGION, operators=5, launches=10)
    return change(
        PARTLY_SAFE, regions=(kept,), captures=(VERIFIED,), estimate=estimate, operators=20
    )


@pytest.mark.parametrize(
    ("launches", "coverage"),
    [(30, 0.3333), (10, 1.0), (9, 1.0), (None, 0.25), (0, 0.25)],
    ids=["a third, to four digits", "all", "never more than all", "of operators", "of none"],
)
def test_coverage_is_the_share_of_launches_or_where_these_are_unknown_of_operators(
    launches: int | None, coverage: float
) -> None:
    found = figures_of(partly(launches))
    assert found.coverage == coverage
    assert found.launches == (launches or 0)


def test_a_step_of_one_operator_may_be_captured_whole() -> None:
    report = change(partly(None), regions=(change(REGION, operators=1),), operators=1)
    assert figures_of(report).coverage == 1.0


@pytest.mark.parametrize(
    ("high", "graph_us", "min_change_us", "fails"),
    [
        (1.2, 900.0, 10.0, False),  # the interval just reaches it
        (1.199, 900.0, 10.0, True),
        (1.199, 810.0, 10.0, True),  # ten us beyond the 800 that are asked for
        (1.199, 809.9, 10.0, False),
        (1.199, 801.0, 0.0, True),
    ],
)
def test_a_graph_is_too_slow_where_it_surely_misses_the_speed_up_by_enough(
    high: float, graph_us: float, min_change_us: float, fails: bool
) -> None:
    measured = change(
        MEASUREMENT, speedup=1.1, speedup_high=high, eager_us=960.0, graph_us=graph_us
    )
    budgets = Budgets(min_speedup=1.2, min_change_us=min_change_us)
    report = change(SAFE, measurement=measured)
    found = [breach.figure for breach in beyond_budget(report, NOW, budgets)]
    assert found == (["speedup"] if fails else [])


def test_a_breach_says_what_it_is_and_what_is_allowed() -> None:
    worse = Figures(syncs=1, launches=1_200, graphs=2, coverage=0.4)
    said = [one.message for one in beyond_budget(SAFE, worse, Budgets(0, 1_000, 1, 0.5))]
    assert said == [
        "1 wait for the device per step, more than the 0 allowed (max_syncs)",
        "1,200 launches per step, more than the 1,000 allowed (max_launches)",
        "2 graphs to hold what can be captured, more than the 1 allowed (max_graphs)",
        "40% of the launches can be captured, less than the 50% required (min_coverage)",
    ]


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (Figures(0, 60, 1, 0.75), {"launches"}),  # 15 stay outside, as before
        (Figures(0, 60, 1, 0.77), set()),  # 14 do
    ],
)
def test_more_launches_are_no_loss_where_fewer_stay_outside_of_graphs(
    now: Figures, worse: set[str]
) -> None:
    assert {breach.figure for breach in beyond_baseline(now, NOW)} == worse
