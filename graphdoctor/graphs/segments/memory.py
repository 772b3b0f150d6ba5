"""Copy into and out of the tensors that a graph was captured with, and track who still uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs, copy_values


def clones(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on memory of their own; those that share memory share it in the clones too."""
    made = clone_inputs(Inputs(args=tuple(tensors))).args
    return [tensor for tensor in made if isinstance(tensor, torch.Tensor)]


def copy_all(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Fill tensors with others' values."""
    for one, other in zip(into, values, strict=True):
        copy_values(one, other)


class Copier:
    """Copies the same tensors again and again, in as few kernels as torch can."""

    def __init__(self, own: Sequence[torch.Tensor]) -> None:
        self._own = list(own)
        memories = set(map(memory_of, own))
        self._is_plain = len(memories) == len(own) and all(map(_is_dense, own))

    def taken(self) -> list[torch.Tensor]:
        """The tensors' values in new memory, of the same strides, shared where the tensors share it."""
        if not self._is_plain:
            return clones(self._own)
        made = [torch.empty_like(tensor) for tensor in self._own]
        if made:
            torch._foreach_copy_(made, self._own)
        return made


def _is_dense(tensor: torch.Tensor) -> bool:
    """Without gaps and overlaps, so that `empty_like` has the same strides."""
    return tensor.numel() > 0 and torch.empty_like(tensor).stride() == tensor.stride()


def memory_of(tensor: torch.Tensor) -> int:
    """Equal for tensors of one storage."""
    return int(tensor.untyped_storage()._cdata)


class Lent:
    """Memory that a graph's results lie in, some of it handed out without a copy, for autograd to keep.

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

    def watch(self, handed_out: Sequence[torch.Tensor], *, but: Iterable[torch.Tensor]) -> None:
        """Take down how many hold the memory of these now, without the tensors that will be gone."""
        self._own = {memory_of(tensor): _users(memory_of(tensor)) for tensor in handed_out}
        for key in map(memory_of, but):
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


@dataclass(frozen=True, slots=True)
class Results:
    """What a call does with each result, by its place among them.

    `back` are arguments, by their place among those; `copied` are the caller's to keep; `lent` stay
    where they are, and `Lent` learns who holds them. All others are nobody's but the caller's.
    `copier` has the copied ones where they are the same tensors in every call.
    """

    back: Mapping[int, int]
    copied: Sequence[int]
    lent: Sequence[int]
    copier: Copier | None

    def hand_out(self, results: list[Any], args: Sequence[Any]) -> None:
        for place, given in self.back.items():
            results[place] = args[given]
        for place in self.lent:
            results[place] = results[place].detach()  # its storage then counts who holds it
        copier = self.copier or Copier([results[place] for place in self.copied])
        copies = copier.taken()
        for place, copy in zip(self.copied, copies, strict=True):
            results[place] = copy


def strangers(results: Sequence[Any], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among the results that are not the graph's own, such as views that it made anew."""
    known = set(map(id, own))
    tensors = {id(result): result for result in results if isinstance(result, torch.Tensor)}
    return [tensor for key, tensor in tensors.items() if key not in known]
