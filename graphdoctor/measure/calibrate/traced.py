"""A trace of calls whose work is known in; samples of what the host and the device took for it out."""

from __future__ import annotations

import numpy as np

from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_blocking, is_kernel_launch, which
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.join import operator_of

_NODE = "autograd::engine::evaluate_function"


def inflation(trace: Trace, plain_us: float) -> float:
    """How many times longer an operator and what surrounds it take under the profiler."""
    starts = np.sort(trace.operators.start_ns)
    if len(starts) < 2:
        return 1.0
    apart_us = float(np.median(np.diff(starts))) / 1e3
    return max(1.0, apart_us / plain_us)


def launch_us(trace: Trace) -> list[float]:
    calls = trace.calls.take(trace.rows_named(trace.calls, which(trace.names, is_kernel_launch)))
    lengths: list[float] = ((calls.end_ns - calls.start_ns) / 1e3).tolist()
    return lengths


def kernel_us(trace: Trace) -> list[float]:
    """Kernels that an operator launched: what the profiler itself puts there is left out."""
    events = trace.device_events.take(trace.device_events.kind == 0)
    lengths: list[float] = ((events.end_ns - events.start_ns) / 1e3).tolist()
    return lengths


def node_us(trace: Trace) -> float:
    """From one node of autograd to the next, of those that follow each other at once."""
    nodes = which(trace.names, lambda name: name.startswith(_NODE))
    starts = np.sort(trace.operators.start_ns[trace.rows_named(trace.operators, nodes)])
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
    waits = trace.calls.take(trace.rows_named(trace.calls, which(trace.names, is_blocking)))
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
