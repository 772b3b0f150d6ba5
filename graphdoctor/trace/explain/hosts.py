"""Sum up host time by operator and by line, the calls in which the host waits, and what waits in the device's queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from graphdoctor.trace.api import is_graph_launch
from graphdoctor.trace.arrays import (
    Calls,
    Ints,
    Mask,
    Spans,
    Table,
    Trace,
    distinct,
    median,
    together,
)
from graphdoctor.trace.explain.gaps import Gaps, events_of, waiting_calls
from graphdoctor.trace.explain.warm_up import cold_calls, in_cold_starts
from graphdoctor.trace.intervals import (
    NONE,
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
from graphdoctor.trace.join import launch_of, operator_nesting, operator_of
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import HostCost, LaunchTotal, Queue, QueuePoint, SyncCost

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


_POINTS = 48


def queue(trace: Trace, device: int, windows: Sequence[Window]) -> Queue:
    """The depth of one device's queue within the windows."""
    rows, call = _launched(trace, device)
    if not len(rows) or not windows:
        return Queue()
    issued = trace.calls.start_ns[call]
    begun = np.maximum(trace.device_events.start_ns[rows], issued)
    moments = np.concatenate([issued, begun])
    change = np.concatenate([np.ones(len(rows), np.int64), -np.ones(len(rows), np.int64)])
    order = np.argsort(moments, kind="stable")
    moments, depth = moments[order], np.cumsum(change[order])
    low, high = windows[0][0], windows[-1][1]
    edges = np.linspace(low, high, _POINTS + 1).astype(np.int64)
    points = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first, last = np.searchsorted(moments, [begin, end], side="right")
        at_begin = int(depth[first - 1]) if first else 0
        most = max(at_begin, int(depth[first:last].max(initial=0)))
        points.append(QueuePoint((begin - low) / 1e3, most))
    single = ~trace.named(trace.calls, is_graph_launch)[call]
    delays = (begun - issued)[single]
    return Queue(
        most=max(point.depth for point in points),
        median_delay_us=median(delays) / 1e3 if len(delays) else None,
        points=tuple(points),
    )


@lru_cache(maxsize=1)
def depth_at_launch(trace: Trace, device: int) -> tuple[Ints, Ints]:
    """The rows of the calls that launch work, and how much was in the queue when each was made."""
    rows, call = _launched(trace, device)
    calls = distinct(call, len(trace.calls))
    counts = np.bincount(call, minlength=len(trace.calls))[calls]
    begun = np.sort(trace.device_events.start_ns[rows])
    issued_before = np.cumsum(counts) - counts
    begun_before = np.searchsorted(begun, trace.calls.start_ns[calls], side="right")
    return calls, np.maximum(issued_before - begun_before, 0)


def launch_totals(
    trace: Trace, device: int, host_windows: Sequence[Window]
) -> tuple[LaunchTotal, ...]:
    """What was launched in the windows of host time, by the name of the call, most events first."""
    rows, call = _launched(trace, device)
    if not len(call):
        return ()
    counted = within(trace.calls, host_windows)[call]
    rows, call = rows[counted], call[counted]
    name = trace.calls.name[call]
    steps = max(1, len(host_windows))
    totals = []
    for wanted in distinct(name, len(trace.names)).tolist():
        mine = name == wanted
        calls = distinct(call[mine], len(trace.calls))
        host = trace.calls.end_ns[calls] - trace.calls.start_ns[calls]
        events = trace.device_events.take(rows[mine])
        totals.append(
            LaunchTotal(
                call=trace.names[wanted],
                launches=len(calls) / steps,
                events=int(mine.sum()) / steps,
                host_us=int(host.sum()) / 1e3 / steps,
                device_us=int((events.end_ns - events.start_ns).sum()) / 1e3 / steps,
            )
        )
    return tuple(sorted(totals, key=lambda total: (-total.events, total.call)))


def _launched(trace: Trace, device: int) -> tuple[Ints, Ints]:
    """The rows of the device's events with a launch, and the rows of their calls."""
    rows = events_of(trace, device)
    call = launch_of(trace)[rows]
    return rows[call != NONE], call[call != NONE]
