"""Find every gap in a device's work and its causes, and sum them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from msgspec import Struct

from graphdoctor.trace.api import is_blocking, is_graph_launch, is_memcpy, is_read
from graphdoctor.trace.arrays import DeviceEvents, Ints, Mask, Trace, distinct, median
from graphdoctor.trace.explain.warm_up import cold_ns, cold_starts
from graphdoctor.trace.intervals import NONE, Window, inside, rows_by_thread, value_at
from graphdoctor.trace.join import launch_of

# What a driver takes from the end of a launch to the start on an idle device: up to 5 us on H100,
# B200 and MI210, 85 us on MI300. What starts later than several usual ones waited for something else.
_USUAL_TIMES = 4
_LEAST_ON_ITS_WAY_NS, _MOST_ON_ITS_WAY_NS = 20_000, 100_000
_GRAPH_TIMES = 5  # the nodes of a graph are uploaded first


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """The gaps of one device, in order of time; the five causes of each sum to its length.

    All streams count together: the nodes of a graph appear on many synthetic streams. `event` is
    the row of the device event that ended the gap, `call` of its launch or -1, `wait` of the call in which the
    launching thread waited for the device, or -1; both rows of the trace's calls. `cold_ns` is how much of
    sync wait, host and launch path, in this order, the launching thread spent in cold starts.
    """

    start_ns: Ints
    end_ns: Ints
    event: Ints
    call: Ints
    wait: Ints
    host_ns: Ints
    launch_path_ns: Ints
    sync_wait_ns: Ints
    device_gap_ns: Ints
    unattributed_ns: Ints
    in_graph: Mask  # between two nodes of one graph launch
    cold_ns: tuple[Ints, Ints, Ints]
    warm_up_ns: Ints  # their sum


def events_of(trace: Trace, device: int) -> Ints:
    """The rows of one device's events, in order of start."""
    return np.flatnonzero(trace.device_events.device == device)


def gaps(trace: Trace, device: int) -> Gaps:
    """Every moment at which no stream of the device worked, between its first start and last end."""
    rows = events_of(trace, device)
    events = trace.device_events.take(rows)
    reached = np.maximum.accumulate(events.end_ns) if len(events) else events.end_ns
    later = np.flatnonzero(events.start_ns[1:] > reached[:-1]) + 1
    start, end = reached[later - 1], events.start_ns[later]
    call = launch_of(trace)[rows][later]
    launch_start, launch_end = (
        value_at(edge, call) for edge in (trace.calls.start_ns, trace.calls.end_ns)
    )
    wait, waited_until = _waits(trace, events, start, call)
    free = np.minimum(end, np.maximum(start, waited_until))
    arrived = np.minimum(end, np.maximum(free, launch_start))
    unknown = call == NONE
    before = launch_of(trace)[rows][later - 1] if len(later) else call
    # A node of a graph that runs already waits for no launch, even if the call is not back yet.
    in_graph = ~unknown & (before == call)
    queued = ~unknown & ((launch_end <= start) | in_graph)
    waited_for_launch = ~unknown & ~queued
    length, zero = end - start, np.zeros(len(start), np.int64)
    # Behind an event or another stream, work that was launched long ago still waits.
    on_its_way = np.minimum(
        end, np.maximum(arrived, launch_end) + _on_its_way_ns(trace, call, launch_end, start, end)
    )
    cold = (zero, zero, zero)
    if len(cold_starts(trace)):
        # The cold starts between the edges of sync wait, host and launch path of the gaps
        # that count.
        edges = (start, free, arrived, on_its_way)
        thread = np.full(len(call), NONE, np.int64)
        thread[waited_for_launch] = trace.calls.thread[call[waited_for_launch]]
        waiting, host, path = (cold_ns(trace, thread, low, high) for low, high in pairwise(edges))
        cold = (waiting, host, path)
    return Gaps(
        start_ns=start,
        end_ns=end,
        event=rows[later],
        call=call,
        wait=np.where(waited_for_launch, wait, NONE),
        host_ns=np.where(waited_for_launch, arrived - free, zero),
        launch_path_ns=np.where(waited_for_launch, on_its_way - arrived, zero),
        sync_wait_ns=np.where(waited_for_launch, free - start, zero),
        device_gap_ns=np.where(queued, length, np.where(waited_for_launch, end - on_its_way, zero)),
        unattributed_ns=np.where(unknown, length, zero),
        in_graph=in_graph,
        cold_ns=cold,
        warm_up_ns=cold[0] + cold[1] + cold[2],
    )


def _on_its_way_ns(trace: Trace, call: Ints, launch_end: Ints, start: Ints, end: Ints) -> Ints:
    """The most that work of each launch is on its way to an idle device once the launch is done."""
    seen = (call != NONE) & (launch_end > start) & (end > launch_end)
    usual = int(median((end - launch_end)[seen])) if seen.any() else 0
    most = min(max(_USUAL_TIMES * usual, _LEAST_ON_ITS_WAY_NS), _MOST_ON_ITS_WAY_NS)
    graphs = trace.named(trace.calls, is_graph_launch)
    is_graph = (call != NONE) & graphs[call] if len(graphs) else call != NONE
    found: Ints = np.where(is_graph, most * _GRAPH_TIMES, most)
    return found


def waiting_calls(trace: Trace, events: DeviceEvents) -> Ints:
    """The rows of calls in which the host waited for the device: synchronisations and reads."""
    blocking = trace.named(trace.calls, is_blocking)
    reads = events.correlation[trace.named(events, is_read)]
    copies = trace.named(trace.calls, is_memcpy)
    is_known = trace.calls.correlation >= 0
    is_reading = copies & is_known & np.isin(trace.calls.correlation, reads)
    return np.flatnonzero(blocking | is_reading)


def _waits(trace: Trace, events: DeviceEvents, moments: Ints, launches: Ints) -> tuple[Ints, Ints]:
    """The launching thread's wait that covers each moment, and when it ended; -1 and the moment for none."""
    row = np.full(len(moments), NONE, np.int64)
    until = moments.copy()  # not 0: clocks may begin after the first event
    waits = waiting_calls(trace, events)
    if not len(waits) or not len(moments):
        return row, until
    calls = trace.calls
    by_thread = rows_by_thread(calls.thread[waits])
    launching = np.where(launches != NONE, calls.thread[launches], NONE)
    for thread, places in by_thread.items():
        mine = waits[places]
        asked = np.flatnonzero(launching == thread)
        # A driver call may lie in a runtime call: what ends last counts.
        longest = _running_argmax(calls.end_ns[mine])
        place = np.searchsorted(calls.start_ns[mine], moments[asked], side="right") - 1
        found = mine[longest[np.maximum(place, 0)]]
        covers = (place >= 0) & (calls.end_ns[found] > moments[asked]) & (found != launches[asked])
        row[asked[covers]] = found[covers]
        until[asked[covers]] = calls.end_ns[found[covers]]
    return row, until


def _running_argmax(values: Ints) -> Ints:
    """For each place, the place of the largest value up to it."""
    is_new = np.empty(len(values), np.bool_)
    is_new[:1] = True
    is_new[1:] = values[1:] > np.maximum.accumulate(values)[:-1]
    largest: Ints = np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))
    return largest


class Lanes(Struct, frozen=True):
    """Where the time of one device between its first start and its last end went, in ns.

    busy: a kernel, copy or fill ran on some stream. The rest is idle, by cause:
    host: the host had not yet reached the launch; launch_path: it was inside the launch;
    sync_wait: it waited for the device; device_gap: the work was queued already (in_graph_ns of
    it between two nodes of a graph); unattributed: the trace has no launch for it.
    Busy and the five causes sum to the span. Cold starts (warm_up_ns) are left out of all of them.
    """

    busy_ns: int = 0
    host_ns: int = 0
    launch_path_ns: int = 0
    sync_wait_ns: int = 0
    device_gap_ns: int = 0
    unattributed_ns: int = 0
    in_graph_ns: int = 0
    warm_up_ns: int = 0
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


def lanes(trace: Trace) -> Lanes:
    """Explain the idle time of the device with the most events."""
    device = busiest_device(trace)
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

    def total(lengths: Ints) -> int:
        return int(lengths[counted].sum())

    cold_wait, cold_host, cold_path = map(total, found.cold_ns)
    return Lanes(
        busy_ns=span - total(found.end_ns - found.start_ns),
        host_ns=total(found.host_ns) - cold_host,
        launch_path_ns=total(found.launch_path_ns) - cold_path,
        sync_wait_ns=total(found.sync_wait_ns) - cold_wait,
        device_gap_ns=total(found.device_gap_ns),
        unattributed_ns=total(found.unattributed_ns),
        in_graph_ns=int(found.device_gap_ns[counted & found.in_graph].sum()),
        warm_up_ns=total(found.warm_up_ns),
        events=int(events_inside.sum()),
        launches=len(distinct(call[call != NONE], len(trace.calls))),
        joined=int((call != NONE).sum()),
    )
