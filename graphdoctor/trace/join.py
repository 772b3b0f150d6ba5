"""Join device events to the calls and operators that launched them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from graphdoctor.trace.api import is_launch
from graphdoctor.trace.arrays import NO_CORRELATION, DeviceEvents, Ints, Trace
from graphdoctor.trace.intervals import NONE, Nesting, innermost, nest, value_at


@lru_cache(maxsize=1)
def launch_of(trace: Trace) -> Ints:
    """For each device event, the row of the call that launched it, or -1.

    Where calls share a correlation id (a runtime call and the driver call in it, or files that
    were merged), it is the last that launches something and began before the event.
    """
    calls, events = trace.calls, trace.device_events
    launches = trace.named(calls, is_launch)
    found = _last_before(trace, np.flatnonzero(launches & (calls.correlation >= 0)), events)
    missing = np.flatnonzero(found == NONE)
    if len(missing):
        others = np.flatnonzero(~launches & (calls.correlation >= 0))
        found[missing] = _last_before(trace, others, events.take(missing))
    return found


def _last_before(trace: Trace, rows: Ints, events: DeviceEvents) -> Ints:
    """The last of these calls with the event's correlation id that began before it, else the first."""
    if not len(rows) or not len(events):
        return np.full(len(events), NONE, np.int64)
    correlation = trace.calls.correlation[rows]
    order = np.argsort(correlation, kind="stable")  # calls are ordered by start already
    rows, correlation = rows[order], correlation[order]
    first = np.searchsorted(correlation, events.correlation, side="left")
    after = np.searchsorted(correlation, events.correlation, side="right")
    place = first.copy()
    start = trace.calls.start_ns[rows]
    for step in range(1, int((after - first).max(initial=0))):
        later = first + step
        is_better = (later < after) & (start[np.minimum(later, len(rows) - 1)] <= events.start_ns)
        if not is_better.any():
            break
        place = np.where(is_better, later, place)
    is_known = (after > first) & (events.correlation != NO_CORRELATION)
    found: Ints = np.where(is_known, rows[np.minimum(place, len(rows) - 1)], NONE)
    return found


@lru_cache(maxsize=1)
def operator_nesting(trace: Trace) -> Nesting:
    return nest(trace.operators)


@lru_cache(maxsize=1)
def operator_of(trace: Trace) -> Ints:
    """For each call, the row of the innermost operator around it, or -1.

    External ids would be shorter, but mean something else in traces of before 2024 and are
    missing on graph kernels.
    """
    calls = trace.calls
    return innermost(trace.operators, operator_nesting(trace), calls.start_ns, calls.thread)


def operators_of_events(trace: Trace) -> Ints:
    """For each device event, the row of the operator that launched it, or -1."""
    return value_at(operator_of(trace), launch_of(trace))
