"""A run of the step -> which way it took: the operators that it issued, and the shapes of what they made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.target.frames import locate
from graphdoctor.target.target import Inputs
from graphdoctor.values.locations import Location

Path = list[int]  # a number for each operator with the shapes of what it made, in order


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of the step returned, and which way it took; `place`: where the asked-for operator is."""

    result: object
    path: Path
    place: Location | None = None


class Run(Protocol):
    """Runs the step on copies of inputs, and finds the place of the operator `at`."""

    def __call__(self, inputs: Inputs, *, at: int = -1) -> Ran: ...


class PathObserver(Observer):
    """Sums up the operators that a run issues and the shapes of what they make; locates one of them."""

    def __init__(self, at: int = -1) -> None:
        self.path: Path = []
        self.place: Location | None = None
        self._at = at

    def before(self, call: Call) -> None:
        if len(self.path) == self._at and self.place is None and not call.facts.is_marker:
            self.place = locate().location

    def after(self, call: Call) -> None:
        if not call.facts.is_marker:
            with torch._C.DisableTorchFunction():
                made = tensors_of(call.result)
                shapes = tuple(None if each.is_nested else tuple(each.shape) for each in made)
            self.path.append(hash((call.facts.name, shapes)))
