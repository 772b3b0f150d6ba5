"""What calibration asks of a machine; a test answers in a GPU's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from graphdoctor.trace import Trace

Call = Callable[[], object]


class Machine(Protocol):
    """Runs named pieces of work and times them. `WORK` in work.py lists the names."""

    name: str  # the GPU's
    software: str  # "torch 2.13.0, CUDA 12.8"

    def host_us(self, work: str) -> Sequence[float]:
        """Host time of one call, several samples; the device is never behind and nothing waits."""

    def burst_us(self, work: str) -> Sequence[Sequence[float]]:
        """Host time of each of a few calls in a row, the first right after the device ran dry; several bursts."""

    def device_us(self, work: str) -> Sequence[float]:
        """Time of one call on a device that has more work queued, several samples."""

    def traced(self, work: str) -> Trace:
        """Some calls under the profiler."""

    def amount(self, work: str) -> float:
        """Bytes moved, operations done or nodes replayed by one call, as the work's name says."""
