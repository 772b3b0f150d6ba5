"""What was timed of a call: rows of calls, or a trace -> samples of what the host and the device took for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_blocking, is_kernel_launch
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.join import operator_of

Bounds = tuple[float, float, float]
_NODE = "autograd::engine::evaluate_function"


class Burst(Struct, frozen=True):
    """Medians by place in the row, in us. `warm` are the samples of the cheapest place but the first.

    The first call of a row is cold, and late ones may wait for the device: neither is the call's own cost.
    """

    places: tuple[float, ...]
    warm: tuple[float, ...]

    @property
    def cold_us(self) -> float:
        return self.places[0]

    @property
    def warm_us(self) -> float:
        return median(self.warm)


def burst_of(rows: Sequence[Sequence[float]]) -> Burst:
    """`rows`: one row a burst, of two calls or more."""
    columns = list(zip(*rows, strict=True))
    places = [median(column) for column in columns]
    cheapest = min(range(1, len(places)), key=places.__getitem__)
    return Burst(tuple(places), tuple(columns[cheapest]))


def launch_bounds(bursts: Mapping[int, Burst]) -> tuple[Bounds, Bounds]:
    """The fixed cost of launching a graph, and that of one more node, from graphs of several sizes.

    The first launch after a wait is the upper bound of the fixed cost.
    """
    fewest, most = min(bursts), max(bursts)
    few, many = bursts[fewest], bursts[most]
    node = _ordered([(value - few.warm_us) / (most - fewest) for value in many.warm])
    fixed = [value - fewest * max(0.0, node[1]) for value in few.warm]
    low, mid, high = _ordered(fixed)
    return (low, mid, max(high, few.cold_us)), node


def _ordered(values: Sequence[float]) -> Bounds:
    """The least, the median, and what nine of ten samples stay below."""
    ordered = sorted(values)
    return ordered[0], median(ordered), ordered[(len(ordered) * 9 - 1) // 10]


def inflation(trace: Trace, plain_us: float) -> float:
    """How many times longer an operator and what surrounds it take under the profiler."""
    starts = np.sort(trace.operators.start_ns)
    if len(starts) < 2:
        return 1.0
    apart_us = float(np.median(np.diff(starts))) / 1e3
    return max(1.0, apart_us / plain_us)


def launch_us(trace: Trace) -> list[float]:
    calls = trace.calls.take(trace.named(trace.calls, is_kernel_launch))
    lengths: list[float] = ((calls.end_ns - calls.start_ns) / 1e3).tolist()
    return lengths


def kernel_us(trace: Trace) -> list[float]:
    """Kernels that an operator launched: what the profiler itself puts there is left out."""
    events = trace.device_events.take(trace.device_events.kind == 0)
    lengths: list[float] = ((events.end_ns - events.start_ns) / 1e3).tolist()
    return lengths


def node_us(trace: Trace) -> float:
    """From one node of autograd to the next, of those that follow each other at once."""
    nodes = trace.named(trace.operators, lambda name: name.startswith(_NODE))
    starts = np.sort(trace.operators.start_ns[nodes])
    return float(np.median(np.diff(starts))) / 1e3 if len(starts) > 1 else 0.0


def latency_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    direct = np.flatnonzero(found.launch_path_ns > 0)
    issued = trace.calls.start_ns[found.call[direct]] if len(direct) else found.start_ns[:0]
    seen = (issued >= found.start_ns[direct]) & (operator_of(trace)[found.call[direct]] >= 0)
    late: list[float] = ((found.end_ns[direct] - issued)[seen] / 1e3).tolist()
    return late


def sync_us(trace: Trace) -> list[float]:
    """From the last end on the device before each waiting call's end to that end."""
    waits = trace.calls.take(trace.named(trace.calls, is_blocking))
    ends = np.sort(trace.device_events.end_ns)
    place = np.searchsorted(ends, waits.end_ns, side="right") - 1
    known = place >= 0
    late = (waits.end_ns[known] - np.maximum(ends[place[known]], waits.start_ns[known])) / 1e3
    found: list[float] = late.tolist()
    return found


def queue_gaps_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    queued: list[float] = (found.device_gap_ns[found.device_gap_ns > 0] / 1e3).tolist()
    return queued
