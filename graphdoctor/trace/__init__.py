"""torch.profiler traces in, device lanes with every idle nanosecond explained out; no torch."""

from __future__ import annotations

from graphdoctor.trace.lanes import Lanes, lanes
from graphdoctor.trace.read import read_trace
from graphdoctor.trace.trace import ApiCall, DeviceEvent, OperatorEvent, StepMark, Trace

__all__ = [
    "ApiCall",
    "DeviceEvent",
    "Lanes",
    "OperatorEvent",
    "StepMark",
    "Trace",
    "lanes",
    "read_trace",
]
