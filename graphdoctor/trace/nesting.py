"""Spans of host threads in; which lies in which, and what is innermost at a moment, out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask, Spans, Table

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
    """Spans of one thread lie in each other or apart; where they do not, the later start is inside."""
    parent = np.full(len(spans), NONE, np.int64)
    rows = rows_by_thread(spans.thread)
    for mine in rows.values():
        parent[mine] = _parents(spans.start_ns[mine], spans.end_ns[mine], mine)
    return Nesting(parent, rows)


def rows_by_thread(thread: Ints) -> dict[int, Ints]:
    """The rows of each thread, in order."""
    order = np.argsort(thread, kind="stable")
    values, starts = np.unique(thread[order], return_index=True)
    parts = np.split(order, starts[1:]) if len(values) else []
    return dict(zip(values.tolist(), parts, strict=True))


def _parents(start: Ints, end: Ints, rows: Ints) -> Ints:
    """By depth: the parent is the last span before that is one level up."""
    count = len(start)
    # A span of no length would end before it began; one ns keeps it inside its parent.
    ended = np.searchsorted(np.sort(np.maximum(end, start + 1)), start, side="right")
    depth = np.arange(count) - ended
    parent = np.full(count, NONE, np.int64)
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        place = np.searchsorted(above, here) - 1
        known = place >= 0
        parent[here[known]] = rows[above[place[known]]]
        above = here
    return parent


def innermost(spans: Spans, nesting: Nesting, moments: Ints, threads: Ints) -> Ints:
    """For each moment on a thread, the row of the innermost span around it, or -1."""
    found = np.full(len(moments), NONE, np.int64)
    for thread, asked in rows_by_thread(threads).items():
        mine = nesting.rows.get(thread)
        if mine is None:
            continue
        place = np.searchsorted(spans.start_ns[mine], moments[asked], side="right") - 1
        row = np.where(place >= 0, mine[np.maximum(place, 0)], NONE)
        while True:
            over = (row != NONE) & (spans.end_ns[row] <= moments[asked])
            if not over.any():
                break
            row = np.where(over, nesting.parent[row], row)
        found[asked] = row
    return found


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
