"""Sum up how much work waits in a device's queue, and which calls launch it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from graphdoctor.trace.api import is_graph_launch
from graphdoctor.trace.arrays import Ints, Trace, distinct, median
from graphdoctor.trace.explain.gaps import events_of
from graphdoctor.trace.explain.hosts import within
from graphdoctor.trace.intervals import NONE, Window
from graphdoctor.trace.join import launch_of
from graphdoctor.values.trace import LaunchTotal, Queue, QueuePoint

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
