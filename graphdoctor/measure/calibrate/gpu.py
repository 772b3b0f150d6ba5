"""The GPU of this machine: calls timed on the host, by events, and under the profiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from graphdoctor.measure.calibrate.work import make_work
from graphdoctor.measure.profile import profile_step
from graphdoctor.trace import Trace
from graphdoctor.values.errors import CannotDoItHere

_SAMPLES = 15
_TRACED_CALLS = 30
_BURST = 8  # calls: far fewer graphs than a queue holds, so that the last ones do not wait for the device

Clock = Callable[[], float]


class GpuMachine:
    """Runs named pieces of work, which work.py lists, and times them. Raises CannotDoItHere without a GPU."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise CannotDoItHere(
                "`graphdoctor calibrate` measures a GPU, and torch finds none here: "
                "run it on the machine whose figures you want."
            )
        self.name = torch.cuda.get_device_name()
        self.software = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        self._work = make_work(torch.device("cuda"))

    def amount(self, work: str) -> float:
        """Bytes moved, operations done or nodes replayed by one call, as the work's name says."""
        return self._work[work].amount

    def host_us(self, work: str) -> Sequence[float]:
        """Host time of one call, several samples; the device is never behind and nothing waits."""
        found = self._work[work]
        if found.before is not None:
            return apart_us(
                found.before, found.call, clock=time.perf_counter, drain=torch.cuda.synchronize
            )
        return timed_us(found.call, time.perf_counter, torch.cuda.synchronize, calls=found.together)

    def burst_us(self, work: str) -> Sequence[Sequence[float]]:
        """Host time of each of a few calls in a row, the first right after the device ran dry; several bursts."""
        return bursts_us(self._work[work].call, time.perf_counter, torch.cuda.synchronize)

    def device_us(self, work: str) -> Sequence[float]:
        """Time of one call on a device that has more work queued, several samples."""
        call, begin = self._work[work].call, torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        samples = []
        for _ in range(_SAMPLES):
            call()
            begin.record()
            call()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3)
        return samples[2:]

    def traced(self, work: str) -> Trace:
        found = self._work[work]

        def calls() -> None:
            for _ in range(_TRACED_CALLS):
                if found.before is not None:
                    found.before()
                found.call()

        return profile_step(calls, steps=2).trace


def timed_us(
    call: Callable[[], object], clock: Clock, drain: Callable[[], object], *, calls: int
) -> Sequence[float]:
    """Host time of one call, in several samples, each of many calls after the device ran dry."""
    call()
    samples = []
    for _ in range(_SAMPLES):
        drain()
        begin = clock()
        for _ in range(calls):
            call()
        samples.append((clock() - begin) / calls * 1e6)
    drain()
    return samples


def apart_us(
    before: Callable[[], object],
    call: Callable[[], object],
    *,
    clock: Clock,
    drain: Callable[[], object],
) -> Sequence[float]:
    """Host time of one call that uses up what `before` makes, which is not timed."""
    samples = []
    for _ in range(_SAMPLES + 1):
        before()
        drain()
        begin = clock()
        call()
        samples.append((clock() - begin) * 1e6)
    drain()
    return samples[1:]


def bursts_us(
    call: Callable[[], object], clock: Clock, drain: Callable[[], object]
) -> Sequence[Sequence[float]]:
    """Host time of each call of a short row after the device ran dry, row by row.

    Of many in a row the last would wait for the device, and of one alone everything is cold.
    """
    call()
    bursts = []
    for _ in range(_SAMPLES):
        drain()
        times = [clock()]
        for _ in range(_BURST):
            call()
            times.append(clock())
        bursts.append([(after - before) * 1e6 for before, after in pairwise(times)])
    drain()
    return bursts
