"""A Trace in, its kernels joined to the operators that launched them out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from graphdoctor.trace.trace import DeviceEvent, Trace, is_launch


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


def launching_operators(trace: Trace) -> dict[int, int]:
    """For each launch, by correlation: the position of the innermost operator around its call.

    External ids would be shorter, but mean something else in traces of before 2024 and are
    missing on graph kernels.
    """
    found: dict[int, int] = {}
    for thread in {operator.thread for operator in trace.operators}:
        places = [place for place, item in enumerate(trace.operators) if item.thread == thread]
        following, open_ = 0, list[int]()
        for call in trace.calls:
            if call.thread != thread or call.correlation is None or not is_launch(call):
                continue
            while (
                following < len(places)
                and trace.operators[places[following]].start_ns <= call.start_ns
            ):
                place = places[following]
                _close(trace, open_, trace.operators[place].start_ns)
                open_.append(place)
                following += 1
            _close(trace, open_, call.start_ns)
            if open_:
                found[call.correlation] = open_[-1]
    return found


def _close(trace: Trace, open_: list[int], moment: int) -> None:
    while open_ and trace.operators[open_[-1]].end_ns <= moment:
        open_.pop()


def operator_totals(trace: Trace) -> tuple[OperatorTotal, ...]:
    """Operators by name, those with the most launches first, then by host time."""
    launched, device_ns = _work_by_operator(trace)
    calls: dict[str, int] = defaultdict(int)
    host: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, int] = defaultdict(int)
    for place, operator in enumerate(trace.operators):
        calls[operator.name] += 1
        host[operator.name] += operator.end_ns - operator.start_ns
        counts[operator.name] += launched[place]
        times[operator.name] += device_ns[place]
    totals = [
        OperatorTotal(name, calls[name], host[name] / 1e3, counts[name], times[name] / 1e3)
        for name in calls
    ]
    return tuple(sorted(totals, key=lambda total: (-total.launches, -total.host_us, total.name)))


def _work_by_operator(trace: Trace) -> tuple[Sequence[int], Sequence[int]]:
    """Launches and device time in ns of each operator, by position."""
    launched, device_ns = [0] * len(trace.operators), [0] * len(trace.operators)
    owner = launching_operators(trace)
    for place in owner.values():
        launched[place] += 1
    for event in trace.device_events:
        place_of = _owner(event, owner)
        if place_of is not None:
            device_ns[place_of] += event.end_ns - event.start_ns
    return launched, device_ns


def kernel_totals(trace: Trace) -> tuple[KernelTotal, ...]:
    """Kernels by name and operator, those that took longest first."""
    owner = launching_operators(trace)
    runs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in trace.device_events:
        place = _owner(event, owner)
        operator = trace.operators[place].name if place is not None else ""
        runs[event.name, operator].append(event.end_ns - event.start_ns)
    totals = [
        KernelTotal(name, operator, len(times), sum(times) / 1e3)
        for (name, operator), times in runs.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.device_us, total.name, total.operator)))


def _owner(event: DeviceEvent, owner: dict[int, int]) -> int | None:
    return owner.get(event.correlation) if event.correlation is not None else None
