"""Read profiler traces and explain every idle nanosecond of a device. Never imports torch."""

from __future__ import annotations

from graphdoctor.trace.arrays import Trace
from graphdoctor.trace.explain.gaps import Lanes, lanes
from graphdoctor.trace.join import (
    launch_of,
    operators_of_events,
)
from graphdoctor.trace.read.file import parse_trace, read_trace

__all__ = [
    "Lanes",
    "Trace",
    "lanes",
    "launch_of",
    "operators_of_events",
    "parse_trace",
    "read_trace",
]
