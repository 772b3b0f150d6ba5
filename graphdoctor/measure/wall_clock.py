"""Times an eager and a graphed step by wall clock. Nothing else times."""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, comb
from statistics import median
from typing import Any, Literal

import torch
from msgspec import Struct

from graphdoctor.device.observe.meeting import ALONE, Meeting
from graphdoctor.graphs.compare import has_same_bits
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.values.figures import count_text
from graphdoctor.values.speed import Measurement

_SLOWDOWNS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "heat",
    "SwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "power brake",
}


class GpuState(Struct, frozen=True):
    """One look at the current GPU. `sm_mhz` is the clock of its multiprocessors now."""

    sm_mhz: int
    slowed_by: tuple[str, ...]
    other_processes: int


def gpu_state() -> GpuState | None:
    """Ask NVML about the current device; None without nvidia-ml-py, a driver, or an answer."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver: NVMLError is only known once it is
        return None
    try:
        return _look(nvml)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _look(nvml: Any) -> GpuState:
    # torch numbers the visible devices, NVML all of them; both know the UUID.
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    handle = (
        nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        if uuid is not None
        else nvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    )
    # Drivers before 535 know the older name only.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    reasons = int(ask(handle))
    slowed = [
        words
        for name, words in _SLOWDOWNS.items()
        if reasons & getattr(nvml, f"nvmlClocksEventReason{name}", 0)
    ]
    # Whoever started this process, as an analysis does for a strategy, waits for it.
    own = (os.getpid(), os.getppid())
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return GpuState(
        sm_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        slowed_by=tuple(dict.fromkeys(slowed)),
        other_processes=sum(process.pid not in own for process in running),
    )


def clock_note(states: Sequence[GpuState | None]) -> str:
    """What a reader must know about the GPU during the measurement; "" if nothing was seen."""
    seen = [state for state in states if state is not None]
    notes = []
    slowed = dict.fromkeys(reason for state in seen for reason in state.slowed_by)
    if slowed:
        slowest, fastest = min(s.sm_mhz for s in seen), max(s.sm_mhz for s in seen)
        notes.append(f"the GPU was slowed down by {', '.join(slowed)} ({slowest} to {fastest} MHz)")
    others = max((state.other_processes for state in seen), default=0)
    if others:
        notes.append(f"{count_text(others, 'other process')} used the GPU")
    return "; ".join(notes)


Step = Callable[[], object]
Clock = Callable[[], float]

CONFIDENCE = 0.95
SMALLEST_SAMPLE = 6  # below, even the whole range holds the median with less than 95 %
_WARM_UP_CALLS = 3
_MOST_PAIRS = 60
_LEAST_BLOCK_S = 0.01  # far above what reading the clock and synchronising cost
_SHORTEST_S = 1e-9


def synchronised_clock() -> float:
    """Seconds, read when the device has done all its work; as torch.utils.benchmark reads them.

    That module is not imported: it brings torch.utils.cpp_extension along, which asks CUDA for its
    devices, so that no later fork can use it, and prints where it finds no toolkit.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Pair(Struct, frozen=True):
    """Two blocks timed one right after the other: seconds for one call of each step."""

    eager_s: float
    graphed_s: float

    @property
    def ratio(self) -> float:
        return self.eager_s / self.graphed_s


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a block of calls must respect: `prepare`, untimed, makes so many calls possible.

    A step that counts its calls on the device, as a cache with a position does, runs past the end
    of its memory when it is called thousands of times, and takes the device down with it.
    """

    most_calls: int = 10_000
    prepare: Callable[[], object] = lambda: None


_FREE = Blocks()


class Plan(Struct, frozen=True):
    """How many calls make a block, and for each pair whether eager goes first."""

    calls: int
    eager_first: tuple[bool, ...]

    def split(self) -> tuple[Plan, Plan]:
        middle = len(self.eager_first) // 2
        first, second = self.eager_first[:middle], self.eager_first[middle:]
        return Plan(self.calls, first), Plan(self.calls, second)


def measure(
    eager: Step,
    graphed: Step,
    *,
    budget_s: float,
    clock: Clock = synchronised_clock,
    blocks: Blocks = _FREE,
    meeting: Meeting = ALONE,
) -> Measurement:
    """Time both steps in interleaved pairs of blocks, for about `budget_s` seconds.

    `clock` gives seconds and must wait for the device first, as the default does. Neighbouring
    blocks share the state of clocks, caches and temperature, so the figure is the median of the
    pairs' ratios, with bounds that hold it with 95 % whatever the noise looks like. At least six
    pairs are timed, even if that takes longer. Several ranks run both equally often, as rank 0 plans,
    since the collectives of a step never end where another rank does not run it.
    """
    most_calls = min(meeting.answers(blocks.most_calls, int))  # as all ranks can
    timer = _Timer(clock, replace(blocks, most_calls=most_calls))
    plan = meeting.answers(_plan(eager, graphed, budget_s=budget_s, timer=timer), Plan)[0]
    first, second = plan.split()
    states = [gpu_state()]
    timed = _time_pairs(eager, graphed, plan=first, timer=timer)
    states.append(gpu_state())
    timed += _time_pairs(eager, graphed, plan=second, timer=timer)
    states.append(gpu_state())
    ranks = meeting.answers(timed, list[Pair])
    timed = [  # each block as it was on the slowest rank, which the others wait for
        Pair(max(pair.eager_s for pair in pairs), max(pair.graphed_s for pair in pairs))
        for pairs in zip(*ranks, strict=True)
    ]
    interval = median_interval([pair.ratio for pair in timed])
    own = median_interval([pair.graphed_s * 1e6 for pair in timed])
    return Measurement(
        eager_us=median(pair.eager_s for pair in timed) * 1e6,
        graph_us=own.median,
        speedup=interval.median,
        speedup_low=interval.low,
        speedup_high=interval.high,
        confidence=CONFIDENCE,
        blocks=len(timed),
        calls_per_block=plan.calls,
        word=word_for(interval),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        clock_note=clock_note(states),
        ranks=len(ranks),
        graph_interval_us=(own.low, own.high),
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    clock: Clock
    blocks: Blocks

    @property
    def most_calls(self) -> int:
        """Timed ones in one block; one more goes before them."""
        return max(1, self.blocks.most_calls - 1)

    def block_s(self, step: Step, calls: int) -> float:
        """Seconds for one call, of `calls` back to back; one call more before them warms caches."""
        self.blocks.prepare()
        step()
        start = self.clock()
        for _ in range(calls):
            step()
        # A clock too coarse for the block must not divide by zero later.
        return max(self.clock() - start, _SHORTEST_S) / calls


def _plan(eager: Step, graphed: Step, *, budget_s: float, timer: _Timer) -> Plan:
    few = min(_WARM_UP_CALLS, timer.most_calls)
    for step in (eager, graphed):
        timer.block_s(step, few)
    start = timer.clock()
    both_s = timer.block_s(eager, few), timer.block_s(graphed, few)
    overhead_s = max(timer.clock() - start - few * sum(both_s), 0.0)  # preparing, and a call each
    calls = min(max(1, ceil(_LEAST_BLOCK_S / min(both_s))), timer.most_calls)
    pairs = int(budget_s / (calls * sum(both_s) + overhead_s))
    # A generator of its own: the user's random numbers stay as they are.
    coin = random.Random(0)
    wanted = min(_MOST_PAIRS, max(SMALLEST_SAMPLE, pairs))
    return Plan(calls, tuple(coin.random() < 0.5 for _ in range(wanted)))


def _time_pairs(eager: Step, graphed: Step, *, plan: Plan, timer: _Timer) -> list[Pair]:
    timed = []
    for eager_first in plan.eager_first:
        order = (eager, graphed) if eager_first else (graphed, eager)
        times_s = [timer.block_s(step, plan.calls) for step in order]
        timed.append(Pair(*(times_s if eager_first else times_s[::-1])))
    return timed


def word_for(interval: MedianInterval) -> Literal["faster", "slower", "no change"]:
    """What may be said of a speed-up: nothing, while the interval holds 1."""
    if interval.low > 1.0:
        return "faster"
    return "slower" if interval.high < 1.0 else "no change"


class MedianInterval(Struct, frozen=True):
    """The median of a sample, and bounds for the median of what it was drawn from."""

    median: float
    low: float
    high: float


def median_interval(sample: Sequence[float]) -> MedianInterval:
    """Bounds that hold the true median with at least `CONFIDENCE`, from two order statistics.

    How many of n values lie below the true median is binomial with 1/2, so the r-th smallest lies
    above it with the probability of fewer than r; likewise at the other end. Raises `ValueError`
    for a sample too small for any such bounds.
    """
    rank = lower_rank(len(sample), CONFIDENCE)
    if rank == 0:
        raise ValueError(f"{len(sample)} values cannot bound a median with {CONFIDENCE:.0%}")
    ordered = sorted(sample)
    return MedianInterval(median(ordered), ordered[rank - 1], ordered[len(ordered) - rank])


def lower_rank(count: int, confidence: float) -> int:
    """The largest r with P(fewer than r of `count` values below the median) <= (1 - c) / 2.

    Ranks count from 1; 0 where there is none.
    """
    allowed = (1.0 - confidence) / 2.0 * 2.0**count
    below, rank = 0, 0
    while rank < count and (below := below + comb(count, rank)) <= allowed:
        rank += 1
    return rank


def blocks_for(captured: Replayable, *, verified_calls: int) -> Blocks:
    """Any number of calls for a step that counts nothing, else as many as its verification made.

    A step counts when a replay changes an integer of its state: a position in a cache, an index
    into a table. Each block then starts from the state of the capture again, which is also what
    this function leaves behind.
    """
    if not _counts(captured):
        return Blocks()
    return Blocks(most_calls=verified_calls, prepare=captured.start.restore)


def _counts(captured: Replayable) -> bool:
    with captured.start.around():
        integers = [
            tensor
            for path, tensor in captured.footprint.tensors.items()
            if not path.startswith(("output", "inputs"))
            and not (tensor.is_floating_point() or tensor.is_complex())
        ]
        before = [tensor.clone() for tensor in integers]
        captured.replay()
        return not all(map(has_same_bits, before, integers))
