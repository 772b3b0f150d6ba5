"""Save what a step finds when it begins, several times: inputs, items that `next()` takes, state of the program."""

from __future__ import annotations

import builtins
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from operator import setitem
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from graphdoctor.target.state.attributes import SCALARS, attributes
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.tree import Tree
from graphdoctor.target.state.variables import global_names
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs

Numbers = dict[tuple[int, object], tuple[Callable[[Any], object], object]]


def numbers_in(roots: Mapping[str, object]) -> Numbers:
    """Every number, flag and text that the roots reach, with what sets it there."""
    found: Numbers = {}

    def note(held: Mapping[object, object], keys: Sequence[object]) -> None:
        for key in keys:
            if isinstance(value := held.get(key), SCALARS) and key in held:
                found[id(held), key] = (partial(setitem, held, key), value)

    with torch._C.DisableTorchFunction():
        for _, value, _ in Walk(roots):
            if type(value) is dict:
                note(value, [key for key in value if isinstance(key, SCALARS)])
            elif isinstance(value, FunctionType):
                for namespace, names in global_names(value):
                    note(namespace, names)  # type: ignore[arg-type]
            elif isinstance(value, torch.nn.Parameter):
                # A loop of a GAN freezes one network's weights before the other one's turn.
                found[id(value), "requires_grad"] = (value.requires_grad_, value.requires_grad)
            else:
                held = attributes(value)
                note(held, list(held))  # type: ignore[arg-type]
    return found


def is_given(value: object) -> bool:
    """Whether a variable holds a batch: tensors, and not only the model's own."""
    with torch._C.DisableTorchFunction():
        leaves = Tree(value, into_objects=False).leaves("").values()
    return any(
        isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter) for x in leaves
    )


def is_plain_container(value: object) -> bool:
    return type(value) in (list, dict, set, deque)


def copied_container(value: Any) -> Any:
    """The same containers within each other, with what they hold shared."""
    if type(value) is dict:
        return {key: copied_container(each) for key, each in value.items()}
    if type(value) is list:
        return [copied_container(each) for each in value]
    return copy.copy(value) if type(value) in (set, deque) else value


class Turn:
    """Which of the program's own steps an input belongs to. To a graph all are the same."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turn)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "the program's own turn"


@dataclass
class Beginning:
    """One time that the step began: its inputs, cloned, and the numbers that were there."""

    inputs: Inputs
    numbers: Numbers
    variables: Mapping[str, object]
    contents: Mapping[
        str, object
    ]  # of variables that are bound again: containers as they were then


@dataclass
class SavedSteps:
    """Consecutive beginnings, and a snapshot of the first."""

    roots: Mapping[str, object]
    start: Snapshot
    beginnings: list[Beginning]
    rebound: set[str] = field(default_factory=set)
    _left: Mapping[str, object] = field(default_factory=dict)
    _left_numbers: Numbers = field(default_factory=dict)
    _changing: set[tuple[int, object]] = field(default_factory=set)

    @classmethod
    def begin(cls, roots: Mapping[str, object]) -> SavedSteps:
        return cls(roots, snapshot(roots), [])

    def add(
        self, inputs: Inputs, variables: Mapping[str, object], contents: Mapping[str, object]
    ) -> None:
        """Note one more beginning; `contents` are copies of containers, which the step may fill."""
        with torch.inference_mode(False), torch.no_grad():
            own = clone_inputs(inputs, kept=memory_of(named_tensors(self.roots).values()))
        numbers = numbers_in(self.roots)
        # What the step itself left there is no doing of the program's.
        first = self.beginnings[0].numbers if self.beginnings else {}
        known = {**first, **self._left_numbers}
        self._changing |= {
            k
            for k, (_, value) in numbers.items()
            if k in known and not _is_same(known[k][1], value)
        }
        self.beginnings.append(Beginning(own, numbers, dict(variables), contents))
        now = _identities(self.roots)
        self.rebound |= {p for p, which in self._left.items() if now.get(p, which) != which}
        self._left, self._left_numbers = {}, {}

    def leave(self) -> None:
        """The step has ended: from here to the next beginning, what changes is the program's doing."""
        self._left = _identities(self.roots)
        self._left_numbers = numbers_in(self.roots)

    def writes(self) -> list[list[Callable[[], object]]]:
        """For each beginning, what sets the numbers that the program may have set, each as a call.

        They differ from what the step before left there, as a schedule's do; where nobody saw that step end,
        between beginnings.
        """
        return [
            [partial(n[key][0], n[key][1]) for key in self._changing if key in n]
            for n in (each.numbers for each in self.beginnings)
        ]


def _identities(roots: Mapping[str, object]) -> dict[str, object]:
    """The memory of every tensor by path, but for gradients, which steps make anew."""
    named = named_tensors(roots, with_gradients=False)
    with torch._C.DisableTorchFunction():
        return {path: memory_of([tensor]) for path, tensor in named.items()}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))


def in_turn(batches: Sequence[Inputs]) -> Callable[[], Inputs]:
    """The first batch for the warm-up; then all in order, again and again."""

    def draw() -> Iterator[Inputs]:
        yield batches[0]
        yield from cycle(batches)

    drawn = draw()
    return lambda: next(drawn)


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
