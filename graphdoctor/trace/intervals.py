"""Intervals of time: which moments and spans lie in which, and how much of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask, Spans, Table

Window = tuple[int, int]  # from, to in ns
OUTSIDE = -1
_FEW = 32


def window_of(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Ints:
    """For each moment, the place of its window, or -1. The windows must not overlap.

    `closed`: whether a window holds its "left" edge or its "right" one.
    """
    if not windows:
        return np.full(len(moments), OUTSIDE, np.int64)
    if len(windows) * _FEW < len(moments) and bool((moments[1:] >= moments[:-1]).all()):
        return _window_of_ordered(moments, windows, closed)
    edges = np.array(windows, np.int64)
    order = np.argsort(edges[:, 0], kind="stable")
    low, high = edges[order, 0], edges[order, 1]
    side = "right" if closed == "left" else "left"
    place = np.searchsorted(low, moments, side=side) - 1  # type: ignore[call-overload]
    is_inside = (moments < high[place]) if closed == "left" else (moments <= high[place])
    found: Ints = np.where((place >= 0) & is_inside, order[place], OUTSIDE)
    return found


def _window_of_ordered(moments: Ints, windows: Sequence[Window], closed: str) -> Ints:
    """The same for moments in order: only the windows' edges have to be looked for."""
    side = "left" if closed == "left" else "right"
    edges = np.searchsorted(moments, np.array(windows, np.int64), side=side)  # type: ignore[call-overload]
    found = np.full(len(moments), OUTSIDE, np.int64)
    for place, (low, high) in enumerate(edges.tolist()):
        found[low:high] = place
    return found


def inside(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Mask:
    """Which moments lie in any of the windows."""
    found: Mask = window_of(moments, windows, closed=closed) != OUTSIDE
    return found


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Stretches in order of their starts -> the same time in stretches that lie apart."""
    if not len(start):
        return start, end
    reached = np.maximum.accumulate(end)
    begins = np.append(True, start[1:] > reached[:-1])
    return start[begins], reached[np.append(begins[1:], True)]


def covered_ns_of(stretches: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    """How much of each [start, end) lies in the stretches, which are in order and apart."""
    low, high = stretches
    total = np.concatenate(([0], np.cumsum(np.maximum(high - low, 0))))
    reached = np.maximum.accumulate(high) if len(high) else high

    def before(moment: Ints) -> Ints:
        place = np.searchsorted(low, moment, side="right")
        last = np.maximum(place - 1, 0)
        beyond = np.maximum(reached[last] - moment, 0) if len(low) else np.zeros_like(moment)
        part: Ints = total[place] - np.where(place > 0, beyond, 0)
        return part

    found: Ints = np.maximum(before(np.maximum(start, end)) - before(start), 0)
    return found


NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Nesting:
    """For every row of a table of spans, the row that encloses it on its thread, or -1.

    `rows` holds each thread's rows in order of start.
    """

    parent: Ints
    rows: dict[int, Ints]

    @property
    def is_outermost(self) -> Mask:
        outermost: Mask = self.parent == NONE
        return outermost


def nest(spans: Spans) -> Nesting:
    """A span lies in the nearest one before it that ends no earlier; two that cross lie side by side."""
    parent = np.full(len(spans), NONE, np.int64)
    rows = rows_by_thread(spans.thread)
    for mine in rows.values():
        parent[mine] = _parents(spans.start_ns[mine], spans.end_ns[mine], mine)
    return Nesting(parent, rows)


def rows_by_thread(thread: Ints) -> dict[int, Ints]:
    """The rows of each thread, in order."""
    order = np.argsort(thread, kind="stable")
    ordered = thread[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=NONE))
    parts = np.split(order, begins[1:]) if len(begins) else []
    return dict(zip(ordered[begins].tolist(), parts, strict=True))


def _parents(start: Ints, end: Ints, rows: Ints) -> Ints:
    """The last span before that ends no earlier. What it jumps over ended earlier than itself.

    Where no span before reaches that far there is none; else the way up meets one that does.
    """
    place = np.arange(len(start)) - 1
    # A span of no length would end before it began; one ns keeps it inside its parent.
    until = np.maximum(end, start + 1)
    reached = np.maximum.accumulate(until)
    place[1:][reached[:-1] < until[1:]] = NONE
    asks = np.flatnonzero(place >= 0)
    asks = asks[until[place[asks]] < until[asks]]
    while len(asks):
        place[asks] = place[place[asks]]
        asks = asks[until[place[asks]] < until[asks]]
    return np.where(place >= 0, rows[place], NONE)


def innermost(spans: Spans, nesting: Nesting, moments: Ints, threads: Ints) -> Ints:
    """For each moment on a thread, the row of the innermost span around it, or -1."""
    found = np.full(len(moments), NONE, np.int64)
    for thread, asked in rows_by_thread(threads).items():
        mine = nesting.rows.get(thread)
        if mine is None:
            continue
        place = np.searchsorted(spans.start_ns[mine], moments[asked], side="right") - 1
        row = np.where(place >= 0, mine[np.maximum(place, 0)], NONE)
        until = moments[asked]
        over = np.flatnonzero((row != NONE) & (spans.end_ns[row] <= until))
        while len(over):
            row[over] = nesting.parent[row[over]]
            over = over[(row[over] != NONE) & (spans.end_ns[row[over]] <= until[over])]
        found[asked] = row
    return found


def outermost(nesting: Nesting, rows: Ints) -> Ints:
    """For each of these rows, -1 among them, the row of the outermost span around it."""
    above = value_at(nesting.parent, rows)
    while (above != NONE).any():
        rows = np.where(above != NONE, above, rows)
        above = value_at(nesting.parent, rows)
    return rows


def value_at(column: Ints, rows: Ints) -> Ints:
    """The values of these rows; -1 for no row."""
    return np.where(rows == NONE, NONE, column[rows]) if len(column) else rows


def inherited(own: Ints, parent: Ints) -> Ints:
    """For each span its own value, or that of the nearest span around it that has one; -1 is none."""
    found, above = own.copy(), parent.copy()
    while True:
        asks = np.flatnonzero((found == NONE) & (above != NONE))
        if not len(asks):
            return found
        found[asks] = found[above[asks]]
        above = np.where(above != NONE, above[above], NONE)


def own_ns(spans: Spans, nesting: Nesting) -> Ints:
    """The time of each span less that of the spans right inside of it."""
    own = spans.end_ns - spans.start_ns
    inner = np.flatnonzero(nesting.parent != NONE)
    outer = nesting.parent[inner]
    overlap = np.minimum(spans.end_ns[inner], spans.end_ns[outer]) - spans.start_ns[inner]
    np.subtract.at(own, outer, np.maximum(overlap, 0))
    least: Ints = np.maximum(own, 0)
    return least


def covered_ns(table: Table, inside: Spans, rows: Ints) -> Ints:
    """For each span, the time of the `table`'s events that `rows` says lie in it."""
    total = np.zeros(len(inside), np.int64)
    known = rows != NONE
    np.add.at(total, rows[known], (table.end_ns - table.start_ns)[known])
    return total
