"""The items that `next()` took from a program's iterators while steps were saved, given again as inputs."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.target import Inputs


class GivenAgain:
    """A substitute for an iterator: gives the items of a pass, and then the same again.

    It has no `__iter__`: what else than `next()` takes from the iterator was not noted.
    """

    def __init__(self) -> None:
        self.items: tuple[Any, ...] = ()
        self.position = 0

    def give(self, items: tuple[Any, ...]) -> None:
        self.items, self.position = items, 0

    def __next__(self) -> Any:
        item = self.items[self.position % len(self.items)]
        self.position += 1
        return item


@dataclass
class TakenItems:
    """The items that `next()` gave from some iterators, by their names, in each pass of a step."""

    passes: dict[str, list[list[object]]] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _held: list[object] = field(default_factory=list)  # keeps their ids in use

    _noting: ClassVar[list[TakenItems]] = []
    _next: ClassVar[Any] = staticmethod(builtins.next)

    def begin_pass(self, values: Mapping[str, object]) -> None:
        """A pass begins, with these variables: what is taken from now on belongs to it."""
        for name, value in values.items():
            if is_iterator(value):
                self._names[id(value)] = name
                self._held.append(value)
        for name in self._names.values():
            self.passes.setdefault(name, []).append([])
        if self._names and self not in self._noting:
            self._noting.append(self)
            builtins.next = _noted

    def stop(self) -> None:
        """Note nothing more; `next` is Python's own again once no other step notes."""
        if self in self._noting:
            self._noting.remove(self)
        if not self._noting:
            builtins.next = self._next

    def note(self, iterator: object, item: object) -> None:
        if (name := self._names.get(id(iterator))) is not None:
            with torch.inference_mode(False), torch.no_grad():
                self.passes[name][-1].append(clone_inputs(Inputs((item,), {})).args[0])

    def of_each(self, name: str, count: int) -> list[tuple[object, ...]] | None:
        """The items of each of so many passes; None where some pass took none, or another number.

        The last pass has only begun: it gets those of the first.
        """
        passes = self.passes.get(name, [])[:count]
        complete = [tuple(items) for items in passes[: count - 1]]
        if not complete or len(set(map(len, complete))) > 1 or not complete[0]:
            return None
        last = tuple(passes[-1]) if len(passes) == count else ()
        return [*complete, last if len(last) == len(complete[0]) else complete[0]]


def is_iterator(value: object) -> bool:
    """Whether it gives items one by one, from a position that cannot be put back."""
    return hasattr(value, "__next__") and (
        not hasattr(value, "__len__") or isinstance(value, _BaseDataLoaderIter)
    )


def _noted(*args: Any) -> Any:
    item = TakenItems._next(*args)
    for each in TakenItems._noting:
        each.note(args[0], item)
    return item
