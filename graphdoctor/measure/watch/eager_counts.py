"""What eager work leaves behind anyway -> counts of it: the allocator's own, and waits that are asked for by name."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.measure.watch.compiled import Growing
from graphdoctor.measure.watch.replaced import replace
from graphdoctor.values.watched import WatchedAllocator

_STATS = ("allocation.all.allocated", "num_device_alloc", "num_alloc_retries")


class AllocatorCounts:
    """Reads what CUDA's caching allocator counts anyway; the program may set it back to 0."""

    def __init__(self) -> None:
        self._sums = Growing()

    def read(self) -> WatchedAllocator:
        if torch.cuda.is_initialized():
            for number in range(torch.cuda.device_count()):
                stats = torch.cuda.memory_stats(number)
                self._sums.read({f"{number} {name}": stats.get(name, 0) for name in _STATS})
        totals = Counter[str]()
        for key, value in self._sums.sums.items():
            totals[key.partition(" ")[2]] += value
        return WatchedAllocator(*(totals[name] for name in _STATS))


class WaitCounts:
    """Counts calls that wait for the device and are Python's, while `on`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._undo: list[Callable[[], None]] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        self._start()
        try:
            yield
        finally:
            self.stop()

    def _start(self) -> None:
        cuda = torch.cuda
        for owner, path in ((cuda, "torch.cuda"), (cuda.Stream, "Stream"), (cuda.Event, "Event")):
            ours = self._counting(owner.synchronize, f"{path}.synchronize()")
            self._undo.append(replace(owner, {"synchronize": ours}))

    def stop(self) -> None:
        """Put them back."""
        while self._undo:
            self._undo.pop()()

    def read(self) -> dict[str, int]:
        return dict(sorted(list(self.counts.items()), key=lambda item: -item[1]))

    def _counting(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        counts = self.counts

        @functools.wraps(method)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return synchronize
