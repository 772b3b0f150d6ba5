"""torch.profiler traces in, device lanes with every idle nanosecond explained out; no torch."""

from __future__ import annotations

from graphdoctor.trace.join import (
    KernelTotal,
    OperatorTotal,
    kernel_totals,
    launch_of,
    operator_totals,
    operators_of_events,
)
from graphdoctor.trace.lanes import Lanes, lanes
from graphdoctor.trace.read import parse_trace, read_trace
from graphdoctor.trace.trace import Calls, DeviceEvents, Spans, Trace

__all__ = [
    "Calls",
    "DeviceEvents",
    "KernelTotal",
    "Lanes",
    "OperatorTotal",
    "Spans",
    "Trace",
    "kernel_totals",
    "lanes",
    "launch_of",
    "operator_totals",
    "operators_of_events",
    "parse_trace",
    "read_trace",
]
