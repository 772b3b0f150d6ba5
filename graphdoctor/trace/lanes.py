"""A trace's device events and API calls in, busy time and every gap by its cause out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

from graphdoctor.trace.trace import ApiCall, DeviceEvent, Trace

_BLOCKING = frozenset(
    {
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMalloc",
        "cudaFree",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuEventSynchronize",
    }
)


class Lanes(Struct, frozen=True):
    """Where the time of one device between its first start and its last end went, in ns.

    busy: a kernel, copy or fill ran on some stream. The rest is idle, by cause:
    host_cpu: the host had not yet reached the launch; launch_path: it was inside the launch;
    sync_drain: it waited for the device; device_gap: the work was queued already;
    unattributed: the trace has no launch for it. The six sum to the span.
    """

    busy_ns: int = 0
    host_cpu_ns: int = 0
    launch_path_ns: int = 0
    sync_drain_ns: int = 0
    device_gap_ns: int = 0
    unattributed_ns: int = 0
    events: int = 0
    launches: int = 0

    @property
    def idle_ns(self) -> int:
        return self.launch_bound_ns + self.sync_drain_ns + self.device_gap_ns + self.unattributed_ns

    @property
    def launch_bound_ns(self) -> int:
        """Idle time that a graph removes."""
        return self.host_cpu_ns + self.launch_path_ns

    @property
    def span_ns(self) -> int:
        return self.busy_ns + self.idle_ns


def lanes(trace: Trace, *, device: int | None = None) -> Lanes:
    """Explain the idle time of one device; None takes the one with the most events.

    All streams count together: the nodes of a graph appear on many synthetic streams.
    """
    events = _events_of(trace.device_events, device)
    if not events:
        return Lanes()
    launched = {call.correlation: call for call in trace.calls if call.correlation is not None}
    waits = _Waits(trace.calls, events)
    host, path, drain, gap, unknown = 0, 0, 0, 0, 0
    busy = 0
    end = events[0].start_ns
    for event in events:
        if event.start_ns > end:
            call = launched.get(event.correlation) if event.correlation is not None else None
            causes = _explain(end, event.start_ns, call, waits)
            host, path, drain = host + causes[0], path + causes[1], drain + causes[2]
            gap, unknown = gap + causes[3], unknown + causes[4]
            end = event.start_ns
        if event.end_ns > end:
            busy += event.end_ns - end
            end = event.end_ns
    correlations = {event.correlation for event in events}
    return Lanes(
        busy_ns=busy,
        host_cpu_ns=host,
        launch_path_ns=path,
        sync_drain_ns=drain,
        device_gap_ns=gap,
        unattributed_ns=unknown,
        events=len(events),
        launches=len(correlations & launched.keys()),
    )


def _events_of(events: Sequence[DeviceEvent], device: int | None) -> list[DeviceEvent]:
    if device is None:
        counts: dict[int, int] = {}
        for event in events:
            counts[event.device] = counts.get(event.device, 0) + 1
        device = max(counts, key=lambda key: counts[key], default=0)
    chosen = [event for event in events if event.device == device]
    return sorted(chosen, key=lambda event: (event.start_ns, event.end_ns))


def _explain(
    end: int, start: int, call: ApiCall | None, waits: _Waits
) -> tuple[int, int, int, int, int]:
    """Split the gap [end, start] into (host, launch, sync, device, unattributed), in ns."""
    if call is None:
        return 0, 0, 0, 0, start - end
    if call.end_ns <= end:
        return 0, 0, 0, start - end, 0
    free = min(start, max(end, waits.end_of_wait(end, call)))
    reached = min(start, max(free, call.start_ns))
    return reached - free, start - reached, free - end, 0, 0


class _Waits:
    """The calls in which a host thread waited for the device, by thread and start."""

    def __init__(self, calls: Iterable[ApiCall], events: Iterable[DeviceEvent]) -> None:
        reads = {event.correlation for event in events if "DtoH" in event.name}
        self._by_thread: dict[int | str, list[ApiCall]] = {}
        for call in calls:
            if call.name in _BLOCKING or (call.correlation in reads and "Memcpy" in call.name):
                self._by_thread.setdefault(call.thread, []).append(call)
        for waits in self._by_thread.values():
            waits.sort(key=lambda call: call.start_ns)

    def end_of_wait(self, moment: int, launch: ApiCall) -> int:
        """When the launching thread's wait that covers `moment` ended; 0 if it did not wait."""
        waits = self._by_thread.get(launch.thread, [])
        index = bisect_right(waits, moment, key=lambda call: call.start_ns) - 1
        if index < 0 or waits[index].end_ns <= moment or waits[index] is launch:
            return 0
        return waits[index].end_ns
