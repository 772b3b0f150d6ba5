"""How long the capture of a graph takes, and how much GPU memory the graph holds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from msgspec import Struct


class Cost(Struct, frozen=True):
    """`prepare_s` is wall time; `extra_bytes` what is held more than for eager, below 0 for less.

    `peak_bytes` is the most that was in use at one time, weights and all.
    """

    prepare_s: float
    extra_bytes: int
    peak_bytes: int


class Meter:
    """Reads the clock and the allocator of a real GPU; begins when it is made.

    One eager step goes first: memory that eager itself has to hold is no cost of anything else.
    What the allocator merely keeps for later is given back before it is read. `cost` is what was
    last read.
    """

    def __init__(self, eager: Callable[[], object]) -> None:
        torch.cuda.empty_cache()
        eager()
        torch.cuda.synchronize()
        self._held = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        self.cost: Cost | None = None
        self._start = time.perf_counter()

    def read(self) -> Cost:
        """What came since; call it once, when all is ready to be used."""
        torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        self.cost = Cost(seconds, torch.cuda.memory_reserved() - self._held, peak)
        return self.cost
