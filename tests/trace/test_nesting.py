"""Which span of a thread lies in which, and what is innermost at a moment."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace.arrays import Spans
from graphdoctor.trace.intervals import (
    NONE,
    covered_ns,
    inherited,
    innermost,
    nest,
    own_ns,
    rows_by_thread,
)


def spans(*rows: tuple[int, int] | tuple[int, int, int]) -> Spans:
    """From, to and thread (0), in order of start."""
    start, end, thread = (
        np.array([(*row, 0)[column] for row in rows], np.int64) for column in range(3)
    )
    nothing = np.zeros(len(rows), np.int64)
    return Spans(name=nothing, start_ns=start, end_ns=end, thread=thread)


def parents(*rows: tuple[int, int] | tuple[int, int, int]) -> list[int]:
    return nest(spans(*rows)).parent.tolist()


@pytest.mark.parametrize(
    ("inner", "lies_inside"),
    [((10, 90), True), ((0, 90), True), ((10, 100), True), ((0, 100), True), ((10, 101), False),
     ((99, 99), True), ((100, 100), False), ((100, 120), False)],
)  # fmt: skip
def test_a_span_lies_in_one_that_begins_no_later_and_ends_no_earlier(
    inner: tuple[int, int], lies_inside: bool
) -> None:
    assert parents((0, 100), inner) == [NONE, 0 if lies_inside else NONE]


def test_a_span_lies_in_the_nearest_one_that_is_long_enough() -> None:
    rows = ((0, 100), (10, 60), (20, 30), (40, 60), (50, 61), (70, 80), (75, 80))
    assert parents(*rows) == [NONE, 0, 1, 1, 0, 0, 5]
    assert nest(spans(*rows)).is_outermost.tolist() == [True, *[False] * 6]


def test_two_that_cross_lie_side_by_side_in_what_holds_both() -> None:
    assert parents((0, 100), (10, 50), (30, 70)) == [NONE, 0, 0]
    assert parents((10, 50), (30, 70)) == [NONE, NONE]


def test_threads_know_nothing_of_each_other() -> None:
    assert parents((0, 100, 1), (10, 20, 2), (12, 15, 1)) == [NONE, NONE, 0]
    found = rows_by_thread(np.array([5, 3, 5, 0]))
    assert {thread: rows.tolist() for thread, rows in found.items()} == {0: [3], 3: [1], 5: [0, 2]}
    assert rows_by_thread(np.zeros(0, np.int64)) == {}


@pytest.mark.parametrize(
    ("moment", "row"),
    [(-1, NONE), (0, 0), (9, 0), (10, 1), (20, 2), (29, 2), (30, 1), (59, 1), (60, 0), (99, 0),
     (100, NONE), (200, 3), (209, 3), (210, NONE)],
)  # fmt: skip
def test_the_innermost_span_holds_its_first_moment_and_not_its_last(moment: int, row: int) -> None:
    rows = spans((0, 100), (10, 60), (20, 30), (200, 210))
    asked, thread = np.array([moment]), np.array([0])
    assert innermost(rows, nest(rows), asked, thread).tolist() == [row]
    assert innermost(rows, nest(rows), asked, thread + 1).tolist() == [NONE]


def test_a_value_comes_from_the_span_itself_or_the_nearest_around_it() -> None:
    own, parent = np.array([NONE, 7, NONE, NONE, NONE]), np.array([NONE, 0, 1, 2, NONE])
    assert inherited(own, parent).tolist() == [NONE, 7, 7, 7, NONE]
    assert own.tolist() == [NONE, 7, NONE, NONE, NONE]  # what was given stays


def test_a_span_s_own_time_is_without_what_runs_right_inside_of_it() -> None:
    rows = spans((0, 100), (10, 60), (20, 30), (70, 75))
    assert own_ns(rows, nest(rows)).tolist() == [45, 40, 10, 5]


def test_own_time_is_never_below_zero() -> None:
    """Spans that cross inside of one may be longer than it together."""
    rows = spans((0, 10), (0, 9), (1, 10))
    assert own_ns(rows, nest(rows)).tolist() == [0, 9, 9]


def test_time_of_events_is_summed_for_the_span_that_they_lie_in() -> None:
    events, inside = spans((0, 5), (7, 8), (9, 19)), spans((0, 50), (60, 70))
    assert covered_ns(events, inside, np.array([0, NONE, 0])).tolist() == [15, 0]
