"""The reader's parts: what lies in what, what repeats, which moments lie in which window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.trace.arrays import Spans
from graphdoctor.trace.intervals import innermost, inside, nest, own_ns, window_of
from graphdoctor.trace.steps import period


def spans(rows: list[tuple[int, int, int]]) -> Spans:
    """From (start, end, thread)."""
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    columns = [np.array(column, np.int64) for column in zip(*ordered, strict=True)] or [
        np.empty(0, np.int64)
    ] * 3
    return Spans(np.zeros(len(ordered), np.int64), columns[0], columns[1], columns[2])


@st.composite
def nested(draw: st.DrawFn) -> Spans:
    """Spans of two threads that lie in each other or apart, of at least 1 ns."""
    rows: list[tuple[int, int, int]] = []

    def fill(low: int, high: int, thread: int, depth: int) -> None:
        at = low
        while at + 2 < high and draw(st.booleans()):
            start = draw(st.integers(at, high - 2))
            end = draw(st.integers(start + 1, high))
            rows.append((start, end, thread))
            if depth:
                fill(start, end, thread, depth - 1)
            at = end

    for thread in (0, 1):
        fill(0, 40, thread, 3)
    return spans(rows)


@given(nested())
def test_the_innermost_span_is_the_shortest_that_holds_the_moment(table: Spans) -> None:
    nesting = nest(table)
    moments = np.tile(np.arange(41), 2)
    threads = np.repeat([0, 1], 41)
    found = innermost(table, nesting, moments, threads)
    for moment, thread, row in zip(moments.tolist(), threads.tolist(), found.tolist(), strict=True):
        around = [
            place
            for place in range(len(table))
            if table.thread[place] == thread
            and table.start_ns[place] <= moment < table.end_ns[place]
        ]
        lengths = [int(table.end_ns[place] - table.start_ns[place]) for place in around]
        assert (row in around and table.end_ns[row] - table.start_ns[row] == min(lengths)) or (
            not around and row == -1
        )


@given(nested())
def test_own_times_sum_to_the_time_inside_of_any_span(table: Spans) -> None:
    own = own_ns(table, nest(table))
    covered = {
        (int(thread), moment)
        for start, end, thread in zip(table.start_ns, table.end_ns, table.thread, strict=True)
        for moment in range(int(start), int(end))
    }
    assert own.sum() == len(covered)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (list(range(10)) * 5, (0, 10)),
        ([*range(20, 32), *(list(range(10)) * 5)], None),  # what comes before is other work
        ([*range(9), *range(9), *(list(range(10)) * 5)], (18, 10)),  # a warm-up of similar work
        ([5, *(list(range(10)) * 2)], None),  # twice is no rule
        ([7] * 100, None),  # a loop, but no step
        (list(range(100)), None),
        ([], None),
        ([99, 98, *(list(range(9)) * 12), 97], None),  # layers between other kernels
        ((list(range(8)) * 3 + [50, 51]) * 4, (0, 26)),  # layers inside of steps
        (list(range(8)) * 3, (0, 8)),  # the shortest unit, as often as it must repeat
        (list(range(7)) * 9, None),
        (list(range(8)) * 2 + [1, 2, 3, 4, 5, 6, 7], None),
        ([*range(8), *range(4), *(list(range(8)) * 3)], (12, 8)),  # less before than repeats
        ([*(list(range(4)) * 7), *(list(range(8)) * 3)], None),  # more before than repeats
        ([*range(7), *(list(range(8)) * 3)], None),  # what is before is no unit
        ([*range(20, 21), *range(9), *(list(range(10)) * 4)], (10, 10)),  # nine of ten are known
        ([*range(20, 22), *range(8), *(list(range(10)) * 4)], None),  # eight of ten are not enough
    ],
)
def test_the_unit_that_repeats_to_the_end_is_a_step(
    sequence: list[int], expected: tuple[int, int] | None
) -> None:
    assert period(np.array(sequence, np.int64)) == expected


@pytest.mark.parametrize(("length", "repeats"), [(99, False), (100, True)])
def test_one_launch_in_a_hundred_may_differ(length: int, repeats: bool) -> None:
    """As where a step takes another branch once."""
    sequence = np.array(list(range(length)) * 5, np.int64)
    sequence[3 * length + 7] = 999
    assert period(sequence) == ((0, length) if repeats else None)


def test_moments_belong_to_windows_with_one_edge() -> None:
    windows = [(10, 20), (20, 30), (50, 60)]
    moments = np.array([9, 10, 19, 20, 30, 55, 60])
    assert window_of(moments, windows).tolist() == [-1, 0, 0, 1, -1, 2, -1]
    assert window_of(moments, windows, closed="right").tolist() == [-1, -1, 0, 0, 1, 2, 2]
    assert inside(moments, []).tolist() == [False] * 7
