"""Collect the beginning of a trace's steps, event by event, for a page to draw."""

from __future__ import annotations

import numpy as np

from graphdoctor.trace.arrays import Ints, Table, Trace, together
from graphdoctor.trace.explain.gap_causes import Activity, names_of
from graphdoctor.trace.explain.gaps import Gaps, events_of
from graphdoctor.trace.explain.hosts import outermost_waits
from graphdoctor.trace.intervals import NONE, Window
from graphdoctor.trace.join import launch_of, operator_nesting
from graphdoctor.trace.steps import Steps
from graphdoctor.values.trace_lanes import LaneEvent, LaneGap, TraceLanes

MOST_EVENTS = 2_000  # of the device; a report is to stay one that can be sent


class _Names:
    """Each text once, and its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers)) if text else NONE


def trace_lanes(
    trace: Trace, device: int, steps: Steps, found: Gaps, acted: Activity
) -> TraceLanes | None:
    """As many steps from the first that counts on as have at most `MOST_EVENTS`; None of no steps."""
    if not steps.counted:
        return None
    low, high = _drawn(trace, device, steps)
    rows = events_of(trace, device)
    rows = rows[_overlaps(trace.device_events, rows, low, high)]
    names = _Names()
    marks = [step for step in steps.all if low <= step.window[0] < high]
    return TraceLanes(
        begin_ns=low,
        span_ns=high - low,
        is_all=high >= max(step.window[1] for step in steps.counted),
        steps=tuple(
            LaneEvent(
                step.window[0] - low,
                min(step.window[1], high) - step.window[0],
                names.number(step.name),
            )
            for step in marks
        ),
        host=_host(trace, rows, (low, high), names),
        waits=_apart(trace, outermost_waits(trace), (low, high), names),
        device=_apart(trace, trace.device_events.take(rows), (low, high), names),
        gaps=_gaps(trace, found, acted, (low, high), names),
        names=tuple(names.numbers),
    )


def _drawn(trace: Trace, device: int, steps: Steps) -> Window:
    """From the first launch of the first step to the end of the last that fits."""
    first = steps.counted[0]
    ends = [step.window[1] for step in steps.counted]
    rows = events_of(trace, device)
    start = trace.device_events.start_ns[rows]
    begins = int(np.searchsorted(start, first.window[0]))
    last = begins + MOST_EVENTS
    most = int(start[last]) if last < len(start) else max(ends)
    fitting = [end for end in ends if end <= most]
    high = max(fitting, default=most)
    return min(first.host[0], first.window[0]), high


def _overlaps(table: Table, rows: Ints, low: int, high: int) -> Ints:
    kept: Ints = np.flatnonzero((table.end_ns[rows] > low) & (table.start_ns[rows] < high))
    return kept


def _host(trace: Trace, rows: Ints, drawn: Window, names: _Names) -> tuple[LaneEvent, ...]:
    """Operators, and calls outside of any, of the thread that launched most of these events."""
    call = launch_of(trace)[rows]
    call = call[call != NONE]
    if not len(call):
        return ()
    thread = int(np.bincount(trace.calls.thread[call]).argmax())
    outermost = trace.operators.take(operator_nesting(trace).is_outermost)
    tables = (outermost, trace.calls)
    spans = together([table.take(table.thread == thread) for table in tables])
    return _apart(trace, spans, drawn, names)


def _apart(trace: Trace, table: Table, drawn: Window, names: _Names) -> tuple[LaneEvent, ...]:
    """The stretches in order, each without what one before it has of it."""
    low, high = drawn
    start, end = np.clip(table.start_ns, low, high), np.clip(table.end_ns, low, high)
    if not len(start):
        return ()
    reached = np.concatenate(([low], np.maximum.accumulate(end)[:-1]))
    start = np.maximum(start, reached)
    kept = np.flatnonzero(end > start)[: 2 * MOST_EVENTS]
    return tuple(
        LaneEvent(at - low, until - at, names.number(trace.names[name]))
        for at, until, name in zip(
            start[kept].tolist(), end[kept].tolist(), table.name[kept].tolist(), strict=True
        )
    )


def _gaps(
    trace: Trace, found: Gaps, acted: Activity, drawn: Window, names: _Names
) -> tuple[LaneGap, ...]:
    low, high = drawn
    places = np.flatnonzero((found.start_ns >= low) & (found.end_ns <= high))
    did = names_of(trace, acted, places)
    columns = (
        found.start_ns[places] - low,
        found.sync_wait_ns[places],
        found.host_ns[places],
        found.launch_path_ns[places],
        found.device_gap_ns[places],
        found.unattributed_ns[places],
        trace.device_events.name[found.event[places]],
    )
    return tuple(
        LaneGap(
            at, wait, host, path, device, unknown,
            names.number(trace.names[kernel]), names.number(doing),
        )
        for at, wait, host, path, device, unknown, kernel, (doing, _) in zip(
            *(column.tolist() for column in columns), did, strict=True
        )
    )  # fmt: skip
