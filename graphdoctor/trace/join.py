"""A Trace -> its device events joined to calls and operators, and totals by name."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct

from graphdoctor.trace.api import is_launch
from graphdoctor.trace.arrays import NO_CORRELATION, DeviceEvents, Ints, Trace, distinct
from graphdoctor.trace.nesting import NONE, Nesting, innermost, nest, value_at


class OperatorTotal(Struct, frozen=True):
    """All calls of one operator: how often, host time with what it called, launches of its own."""

    name: str
    calls: int
    host_us: float
    launches: int
    device_us: float


class KernelTotal(Struct, frozen=True):
    """All runs of one kernel (or copy, or fill) that one operator launched; "" where none did."""

    name: str
    operator: str
    runs: int
    device_us: float


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


def operator_totals(trace: Trace) -> tuple[OperatorTotal, ...]:
    """Operators by name, those with the most launches first, then by host time."""
    operators, events = trace.operators, trace.device_events
    owner = operators_of_events(trace)
    launched = operator_of(trace)[distinct(launch_of(trace)[owner != NONE], len(trace.calls))]
    size = len(trace.names)
    calls = np.bincount(operators.name, minlength=size)
    host = _sum(operators.name, operators.end_ns - operators.start_ns, size)
    counts = np.bincount(operators.name[launched], minlength=size)
    known = owner != NONE
    lengths = (events.end_ns - events.start_ns)[known]
    device = _sum(operators.name[owner[known]], lengths, size)
    totals = [
        OperatorTotal(
            trace.names[name],
            int(calls[name]),
            host[name] / 1e3,
            int(counts[name]),
            device[name] / 1e3,
        )
        for name in np.flatnonzero(calls).tolist()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.launches, -total.host_us, total.name)))


def _sum(group: Ints, values: Ints, size: int) -> list[int]:
    total = np.zeros(size, np.int64)
    np.add.at(total, group, values)
    summed: list[int] = total.tolist()
    return summed


def kernel_totals(trace: Trace) -> tuple[KernelTotal, ...]:
    """Kernels by name and operator, those that took longest first."""
    events, owner = trace.device_events, operators_of_events(trace)
    operator = np.full(len(events), NONE, np.int64)
    operator[owner != NONE] = trace.operators.name[owner[owner != NONE]]
    pairs, group = np.unique(np.stack([events.name, operator]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    runs = np.bincount(group, minlength=pairs.shape[1]).tolist()
    times = _sum(group, events.end_ns - events.start_ns, pairs.shape[1])
    totals = [
        KernelTotal(
            trace.names[name],
            trace.text(operator),
            runs[place],
            times[place] / 1e3,
        )
        for place, (name, operator) in enumerate(pairs.T.tolist())
    ]
    return tuple(sorted(totals, key=lambda total: (-total.device_us, total.name, total.operator)))
