"""Tensors that a graph was captured with -> copies into them, copies out of them, and who still uses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from graphdoctor.target import Inputs
from graphdoctor.target.clone import clone_inputs, copy_values, is_overlapping


def clones(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on memory of their own; those that share memory share it in the clones too."""
    made = clone_inputs(Inputs(args=tuple(tensors))).args
    return [tensor for tensor in made if isinstance(tensor, torch.Tensor)]


def copy_all(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Fill tensors with others' values, in as few kernels as torch can."""
    if not into:
        return
    if any(map(is_overlapping, into)):
        for one, other in zip(into, values, strict=True):
            copy_values(one, other)
    else:
        torch._foreach_copy_(list(into), list(values))


def memory_of(tensor: torch.Tensor) -> int:
    """Equal for tensors of one storage."""
    return int(tensor.untyped_storage()._cdata)


class Lent:
    """Memory that a graph's results lie in, handed out without a copy, for autograd to keep.

    A replay overwrites it, which is right only when nobody holds the results of the last one any
    more. `is_held` asks the storages how many tensors look into them.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._own: dict[int, int] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return memory_of(tensor) in self._storages

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages.setdefault(storage._cdata, storage)

    def count(self, borrowed: Iterable[torch.Tensor]) -> None:
        """Take down how many hold each storage now; `borrowed` tensors are not the graph's own."""
        self._own = {key: _users(key) for key in self._storages}
        for key in map(memory_of, borrowed):
            if key in self._own:
                self._own[key] -= 1

    def is_held(self) -> bool:
        return any(_users(key) > own for key, own in self._own.items())


def can_lend() -> bool:
    """Whether this torch tells how many hold a storage."""
    return hasattr(torch._C, "_storage_Use_Count")


def _users(key: int) -> int:
    count: Any = torch._C._storage_Use_Count(key)
    return int(count)
