"""Save what a step finds when it begins, several times in a row: its inputs, and the state of the program."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from types import FunctionType
from typing import Any

import torch

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.plain import SCALARS
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.tree import Tree
from graphdoctor.target.state.variables import global_names
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs

Numbers = dict[tuple[int, object], tuple[dict[object, object], object]]


def numbers_in(roots: Mapping[str, object]) -> Numbers:
    """Every number, flag and text that the roots reach, with the dictionary that holds it."""
    found: Numbers = {}

    def note(held: Mapping[object, object], keys: Sequence[object]) -> None:
        for key in keys:
            if isinstance(value := held.get(key), SCALARS) and key in held:
                found[id(held), key] = (held, value)  # type: ignore[assignment]

    with torch._C.DisableTorchFunction():
        for _, value, _ in Walk(roots):
            if type(value) is dict:
                note(value, [key for key in value if isinstance(key, SCALARS)])
            elif isinstance(value, FunctionType):
                for namespace, names in global_names(value):
                    note(namespace, names)  # type: ignore[arg-type]
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

    def writes(self) -> list[list[tuple[dict[object, object], object, object]]]:
        """For each beginning, the numbers that the program may have set: where to write what.

        They differ from what the step before left there, as a schedule's do; where nobody saw that step end,
        between beginnings.
        """
        return [
            [(n[key][0], key[1], n[key][1]) for key in self._changing if key in n]
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
