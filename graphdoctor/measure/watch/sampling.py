"""Decides when to open windows of the profiler, and turns what it saw into counts and rates with intervals."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec.structs import replace

from graphdoctor.trace.api import is_blocking, is_graph_launch, is_kernel_launch, is_memcpy
from graphdoctor.values.watched import Rate, SampledCalls

SHARE = 0.005
"""Of the program's time, at most, that windows take."""
EXPECTED_COST_S = 0.1
_JITTER = 0.2  # so that windows do not keep step with the program
FEWEST_WINDOWS = 3
_Z_95 = 1.96
_DIRECTION = re.compile(r"Memcpy (HtoD|DtoH|DtoD|PtoP|HtoH)")
_DIRECTIONS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "on the device",
    "PtoP": "device to device",
    "HtoH": "host to host",
}
_NO_WORK = ("Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync", "Device Sync")


_Kind = Literal["launches", "graph launches", "syncs", "none"]


class DutyCycle:
    """Windows are so far apart that all of their cost stays below `share` of the time.

    A window may begin only when the one before it is paid for, so that at the beginning of each, what
    all took together is at most `share` of the time since `now_s`, whatever a window costs.
    """

    def __init__(self, now_s: float, share: float = SHARE) -> None:
        self._share = share
        self._random = random.Random(0)  # its own: the program's generators stay as they are
        self.due_s = now_s
        self.spent_s = 0.0
        self._rest(EXPECTED_COST_S)

    def pay(self, now_s: float, cost_s: float) -> None:
        """A window that cost so much has just ended."""
        self.spent_s += cost_s
        self.due_s = now_s
        self._rest(cost_s)

    def _rest(self, cost_s: float) -> None:
        self.due_s += cost_s / self._share * (1 + _JITTER * self._random.random())


class Seen(NamedTuple):
    """One event of the profiler: a call of the CUDA API, or an operation on the device."""

    name: str
    is_on_device: bool
    correlation: int


@dataclass(slots=True)
class _Spread:
    """The mean of a rate over windows, and what its variance is made of."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    def rate(self) -> Rate | None:
        if not self.count:
            return None
        if self.count < FEWEST_WINDOWS:
            return Rate(self.mean)
        half = _Z_95 * math.sqrt(self.squares / (self.count - 1) / self.count)
        return Rate(self.mean, max(0.0, self.mean - half), self.mean + half)


@dataclass(slots=True)
class Windows:
    """The sums over all windows; of a window nothing else is kept."""

    count: int = 0
    seen_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    spreads: dict[str, _Spread] = field(default_factory=dict)

    def add(self, events: Iterable[Seen], seen_s: float) -> None:
        """One window of that length."""
        counts, syncs, copies = _counted(events)
        self.count += 1
        self.seen_s += seen_s
        self.counts += counts
        self.syncs += syncs
        self.copies += copies
        rates = {
            "launches": counts["launches"],
            "graph launches": counts["graph launches"],
            "syncs": syncs.total(),
            "copies": copies.total(),
        }
        for what, number in rates.items():
            self.spreads.setdefault(what, _Spread()).add(number / seen_s)

    def read(self) -> SampledCalls:
        rates = {what: spread.rate() for what, spread in self.spreads.items()}
        calls = SampledCalls(
            windows=self.count,
            seen_s=self.seen_s,
            launches=self.counts["launches"],
            graph_launches=self.counts["graph launches"],
            operations=self.counts["operations"],
            operations_in_graphs=self.counts["in graphs"],
            syncs=dict(self.syncs.most_common()),
            copies=dict(self.copies.most_common()),
            launch_rate=rates.get("launches"),
            graph_launch_rate=rates.get("graph launches"),
            sync_rate=rates.get("syncs"),
            copy_rate=rates.get("copies"),
        )
        return replace(calls, copy_rate=None) if calls.lacks_work else calls


def _counted(events: Iterable[Seen]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    counts: Counter[str] = Counter()
    syncs: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    graphs: set[int] = set()
    operations: Counter[int] = Counter()  # by their correlation id, which those of one graph share
    for event in events:
        if event.is_on_device:
            if event.name.startswith(_NO_WORK):
                continue
            operations[event.correlation] += 1
            if is_memcpy(event.name):
                found = _DIRECTION.search(event.name)
                copies[_DIRECTIONS[found.group(1)] if found else "other"] += 1
            continue
        kind = _kind(event.name)
        if kind == "syncs":
            syncs[event.name] += 1
            continue
        counts[kind] += 1
        if kind == "graph launches":
            graphs.add(event.correlation)
    counts["operations"] = operations.total()
    # Of a graph that was launched before the window there is no call: there are its operations.
    counts["in graphs"] = sum(n for key, n in operations.items() if key in graphs or n > 1)
    return counts, syncs, copies


@lru_cache(maxsize=1024)
def _kind(name: str) -> _Kind:
    """What a call of the CUDA API does; there are some dozens of names, and many calls."""
    if is_graph_launch(name):
        return "graph launches"
    if is_kernel_launch(name):
        return "launches"
    return "syncs" if is_blocking(name) else "none"
