"""torch.profiler traces in, device lanes with every idle nanosecond explained out; no torch."""

from __future__ import annotations

from graphdoctor.trace.join import (
    KernelTotal,
    OperatorTotal,
    kernel_totals,
    launching_operators,
    operator_totals,
)
from graphdoctor.trace.lanes import Lanes, lanes
from graphdoctor.trace.read import read_trace
from graphdoctor.trace.trace import ApiCall, DeviceEvent, OperatorEvent, StepMark, Trace

__all__ = [
    "ApiCall",
    "DeviceEvent",
    "KernelTotal",
    "Lanes",
    "OperatorEvent",
    "OperatorTotal",
    "StepMark",
    "Trace",
    "kernel_totals",
    "lanes",
    "launching_operators",
    "operator_totals",
    "read_trace",
]
