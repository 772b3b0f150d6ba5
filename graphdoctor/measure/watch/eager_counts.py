"""What eager work leaves behind anyway -> counts of it: the allocator's own, and waits that are asked for by name."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from graphdoctor.measure.watch.compiled import Growing
from graphdoctor.measure.watch.replaced import replaced
from graphdoctor.values.watched import WatchedAllocator

_STATS = ("allocation.all.allocated", "num_device_alloc", "num_alloc_retries")


class AllocatorCounts:
    """Reads what CUDA's caching allocator counts anyway; the program may set it back to 0."""

    def __init__(self) -> None:
        self._sums = {name: Growing() for name in _STATS}  # each by device

    def read(self) -> WatchedAllocator | None:
        """None where another allocator is in its place: a pluggable one refuses, cudaMallocAsync's says 0."""
        if torch.cuda.is_initialized():
            if torch.cuda.get_allocator_backend() != "native":
                return None
            stats = [torch.cuda.memory_stats(number) for number in range(torch.cuda.device_count())]
            for name, sums in self._sums.items():
                sums.read({number: each.get(name, 0) for number, each in enumerate(stats)})
        return WatchedAllocator(*(sums.sums.total() for sums in self._sums.values()))


class WaitCounts:
    """Counts calls that wait for the device and are Python's, while `on`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def on(self) -> Iterator[None]:
        cuda = torch.cuda
        with ExitStack() as stack:
            for owner, path in (
                (cuda, "torch.cuda"), (cuda.Stream, "Stream"), (cuda.Event, "Event")
            ):  # fmt: skip
                ours = self._counting(owner.synchronize, f"{path}.synchronize()")
                stack.enter_context(replaced(owner, {"synchronize": ours}))
            yield

    def read(self) -> dict[str, int]:
        return dict(sorted(list(self.counts.items()), key=lambda item: -item[1]))

    def _counting(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        counts = self.counts

        @functools.wraps(method)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return synchronize
