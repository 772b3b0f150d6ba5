"""Find the tensors that a captured graph's kernels use without torch's dispatcher, such as those of Triton."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch

from graphdoctor.device.captured_kernels import CapturedKernel
from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.storages import StorageInfo
from graphdoctor.target.frames import locate
from graphdoctor.values.locations import Location


class Nodes(Protocol):
    """The nodes of a graph that is being captured."""

    def count(self) -> int: ...

    def kernels(self, positions: Iterable[int]) -> Iterator[CapturedKernel]: ...


class KernelUse(NamedTuple):
    """A kernel, and the line of the operator that launched it, if one did."""

    kernel: CapturedKernel
    location: Location | None


class UndispatchedKernels(Observer):
    """During one capture, separates kernels of torch's own operators from all others.

    An operator of torch's own uses its arguments, which torch shows. Operators of libraries may use more: vLLM's
    attention finds its cache by the name of a layer.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._first = 0
        self._torchs: set[int] = set()  # nodes, by position
        self._lines: dict[int, Location | None] = {}

    def before(self, call: Call) -> None:
        self._first = self._nodes.count()

    def after(self, call: Call) -> None:
        launched = range(self._first, self._nodes.count())
        if call.facts.is_aten or call.facts.is_collective:
            self._torchs.update(launched)
        elif launched:
            self._lines.update(dict.fromkeys(launched, locate().location))

    def all(self) -> Iterator[KernelUse]:
        """The other kernels so far; the capture has to be under way."""
        others = [each for each in range(self._nodes.count()) if each not in self._torchs]
        for kernel in self._nodes.kernels(others):
            yield KernelUse(kernel, self._lines.get(kernel.node))


def used_storages(
    uses: Iterable[KernelUse], storages: Iterable[tuple[StorageInfo, torch.UntypedStorage]]
) -> Iterator[tuple[KernelUse, StorageInfo, torch.UntypedStorage]]:
    """The storages that an address in a kernel's parameters is in, each with its first kernel."""
    by_address = sorted(
        ((storage.data_ptr(), info.number), info, storage) for info, storage in storages
    )
    extents = [range(at, at + storage.nbytes()) for (at, _), _, storage in by_address]
    found: set[int] = set()
    for use in uses:
        for word in use.kernel.words:
            index = bisect_right(extents, word, key=lambda extent: extent.start) - 1
            if index >= 0 and word in extents[index] and index not in found:
                found.add(index)
                yield use, *by_address[index][1:]
