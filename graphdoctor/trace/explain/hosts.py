"""Sum up host time by operator and by line, and the calls in which the host waits for the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from graphdoctor.trace.arrays import Calls, Ints, Mask, Spans, Table, Trace, together
from graphdoctor.trace.explain.gaps import Gaps, waiting_calls
from graphdoctor.trace.explain.warm_up import cold_calls, in_cold_starts
from graphdoctor.trace.intervals import (
    Nesting,
    Window,
    covered_ns,
    covered_ns_of,
    innermost,
    inside,
    nest,
    outermost,
    own_ns,
    value_at,
)
from graphdoctor.trace.join import operator_nesting, operator_of
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import HostCost, SyncCost

_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# Kineto shortens paths to where packages are found: "torch/nn/modules/module.py", "threading.py".
_MACHINERY = re.compile(
    r"(^|/)(torch|graphdoctor|asyncio|multiprocessing|concurrent|importlib)/|<"
    r"|^(threading|contextlib|functools|runpy|queue|selectors|inspect|abc|typing)\.py\("
    r"|/lib/python3[^/]*/(?!(site|dist)-packages/)"
)


def within(table: Table, windows: Sequence[Window]) -> Mask:
    """The rows that begin in one of the windows."""
    return inside(table.start_ns, windows)


def is_user_frame(name: str) -> bool:
    return _FRAME.match(name) is not None and not _MACHINERY.search(name)


def location(name: str) -> Location | None:
    """The place that a Python frame's name says."""
    frame = _FRAME.match(name)
    if frame is None:
        return None
    return Location(frame["file"], int(frame["line"]), frame["function"])


@lru_cache(maxsize=1)
def user_frames(trace: Trace) -> Spans:
    """The Python frames of the user's own code and of the packages that they use."""
    return trace.frames.take(trace.named(trace.frames, is_user_frame))


@lru_cache(maxsize=1)
def frame_nesting(trace: Trace) -> Nesting:
    """How the user's functions nest."""
    return nest(user_frames(trace))


def user_functions(trace: Trace, calls: Calls) -> Ints:
    """The names of the user's innermost functions around these calls; -1 where there is none."""
    frames = user_frames(trace)
    return value_at(
        frames.name, innermost(frames, frame_nesting(trace), calls.start_ns, calls.thread)
    )


def operator_costs(trace: Trace, windows: Sequence[Window], most: int) -> tuple[HostCost, ...]:
    """Operators by their own host time, without the operators and the waits inside of them."""
    return _costs(trace, trace.operators, operator_nesting(trace), windows, most)


def line_costs(trace: Trace, windows: Sequence[Window], most: int) -> tuple[HostCost, ...]:
    """The user's functions by host time, what torch did for them included; () without stacks."""
    frames = user_frames(trace)
    return _costs(trace, frames, frame_nesting(trace), windows, most)


def _costs(
    trace: Trace, spans: Spans, nesting: Nesting, windows: Sequence[Window], most: int
) -> tuple[HostCost, ...]:
    if not len(spans):
        return ()
    steps = max(1, len(windows))
    time, calls = host_ns_by_name(trace, spans, nesting, windows)
    total = int(time.sum()) or 1
    found = np.argsort(-time, kind="stable")[:most]
    return tuple(
        HostCost(
            name=trace.names[name],
            location=location(trace.names[name]),
            calls=int(calls[name]) / steps,
            host_us=int(time[name]) / 1e3 / steps,
            share=int(time[name]) / total,
        )
        for name in found.tolist()
        if time[name]
    )


def host_ns_by_name(
    trace: Trace, spans: Spans, nesting: Nesting, windows: Sequence[Window]
) -> tuple[Ints, Ints]:
    """For each name the host time of its spans' own, waits for the device left out, and their number."""
    cold = trace.calls.take(cold_calls(trace))
    waits: Spans = outermost_waits(trace)
    if len(cold):
        known = np.isin(waits.start_ns, cold.start_ns)
        waits = together([waits.take(~known), cold])
    size = len(trace.names)
    waiting = covered_ns(waits, spans, innermost(spans, nesting, waits.start_ns, waits.thread))
    own = np.maximum(own_ns(spans, nesting) - waiting, 0)
    rows = np.flatnonzero(within(spans, windows))
    time = np.zeros(size, np.int64)
    np.add.at(time, spans.name[rows], own[rows])
    return time, np.bincount(spans.name[rows], minlength=size)


@lru_cache(maxsize=1)
def outermost_waits(trace: Trace) -> Calls:
    """Calls that wait for the device, a driver call inside of a runtime call left out."""
    rows = waiting_calls(trace, trace.device_events)
    waits = trace.calls.take(rows)
    return waits.take(nest(waits).is_outermost) if len(waits) else waits


def sync_costs(
    trace: Trace, found: Gaps, windows: Sequence[Window], most: int
) -> tuple[SyncCost, ...]:
    """The places where the host waited, by the time that it was in the calls."""
    rows = waiting_calls(trace, trace.device_events)
    waits = trace.calls.take(rows)
    rows = rows[within(waits, windows) & ~in_cold_starts(trace, waits)]
    if not len(rows):
        return ()
    waits = trace.calls.take(rows)
    is_outer = nest(waits).is_outermost
    rows, waits = rows[is_outer], waits.take(is_outer)
    # Whatever the device waited for: the host was blocked, and could not give it work.
    idle = covered_ns_of((found.start_ns, found.end_ns), waits.start_ns, waits.end_ns)
    operator = outermost(
        operator_nesting(trace), operator_of(trace)[rows]
    )  # aten::item, not what it calls
    names = value_at(trace.operators.name, operator)
    keys = np.stack([waits.name, names, user_functions(trace, waits)])
    groups, group = np.unique(keys, axis=1, return_inverse=True)
    costs = [
        _sync_cost(trace, groups[:, place], waits.take(group.reshape(-1) == place),
                   int(idle[group.reshape(-1) == place].sum()), max(1, len(windows)))
        for place in range(groups.shape[1])
    ]  # fmt: skip
    return tuple(sorted(costs, key=lambda cost: -cost.host_wait_us)[:most])


def _sync_cost(trace: Trace, key: Ints, waits: Calls, idle: int, steps: int) -> SyncCost:
    call, operator, line = key.tolist()
    return SyncCost(
        call=trace.names[call],
        operator=trace.text(operator),
        location=location(trace.text(line)),
        count=len(waits) / steps,
        host_wait_us=int((waits.end_ns - waits.start_ns).sum()) / 1e3 / steps,
        device_idle_us=idle / 1e3 / steps,
    )
