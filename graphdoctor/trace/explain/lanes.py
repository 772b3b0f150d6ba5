"""Windows of a device's time -> busy time and idle time by its cause, summed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from graphdoctor.trace.arrays import Trace, distinct
from graphdoctor.trace.explain.gaps import Gaps, events_of, gaps
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.windows import Window, inside


class Lanes(Struct, frozen=True):
    """Where the time of one device between its first start and its last end went, in ns.

    busy: a kernel, copy or fill ran on some stream. The rest is idle, by cause:
    host: the host had not yet reached the launch; launch_path: it was inside the launch;
    sync_wait: it waited for the device; device_gap: the work was queued already (in_graph_ns of
    it between two nodes of a graph); unattributed: the trace has no launch for it.
    Busy and the five causes sum to the span.
    """

    busy_ns: int = 0
    host_ns: int = 0
    launch_path_ns: int = 0
    sync_wait_ns: int = 0
    device_gap_ns: int = 0
    unattributed_ns: int = 0
    in_graph_ns: int = 0
    events: int = 0
    launches: int = 0
    joined: int = 0  # events with a launch in the trace

    @property
    def idle_ns(self) -> int:
        return self.launch_bound_ns + self.sync_wait_ns + self.device_gap_ns + self.unattributed_ns

    @property
    def launch_bound_ns(self) -> int:
        """Idle time that a graph removes."""
        return self.host_ns + self.launch_path_ns

    @property
    def span_ns(self) -> int:
        return self.busy_ns + self.idle_ns


def busiest_device(trace: Trace) -> int:
    """The device with the most events, by its place in the trace's list."""
    return int(np.argmax(np.bincount(trace.device_events.device))) if trace.devices else 0


def whole_span(trace: Trace, device: int) -> Window:
    """From the device's first start to its last end."""
    events = trace.device_events.take(events_of(trace, device))
    return (int(events.start_ns.min()), int(events.end_ns.max())) if len(events) else (0, 0)


def lanes(trace: Trace, *, device: int | None = None) -> Lanes:
    """Explain the idle time of one device; None takes the one with the most events."""
    device = busiest_device(trace) if device is None else device
    return lanes_in(trace, device, [whole_span(trace, device)])


def lanes_in(
    trace: Trace, device: int, windows: Sequence[Window], found: Gaps | None = None
) -> Lanes:
    """The same within windows that do not overlap, and begin and end where the device's work does."""
    found = gaps(trace, device) if found is None else found
    mine = events_of(trace, device)
    start = trace.device_events.start_ns[mine]
    counted = inside(found.end_ns, windows, closed="right")
    events_inside = inside(start, windows)
    span = sum(high - low for low, high in windows)
    call = launch_of(trace)[mine[events_inside]]

    def total(name: str) -> int:
        return int(getattr(found, name)[counted].sum())

    return Lanes(
        busy_ns=span - int((found.end_ns - found.start_ns)[counted].sum()),
        host_ns=total("host_ns"),
        launch_path_ns=total("launch_path_ns"),
        sync_wait_ns=total("sync_wait_ns"),
        device_gap_ns=total("device_gap_ns"),
        unattributed_ns=total("unattributed_ns"),
        in_graph_ns=int(found.device_gap_ns[counted & found.in_graph].sum()),
        events=int(events_inside.sum()),
        launches=len(distinct(call[call != NONE], len(trace.calls))),
        joined=int((call != NONE).sum()),
    )
