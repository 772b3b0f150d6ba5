"""A run of the step on some inputs -> its outcome: the way that it took, and whether its results are finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.device.observe.storages import parts_of
from graphdoctor.target.frames import locate
from graphdoctor.target.state.snapshot import has_memory
from graphdoctor.target.state.tree import leaves
from graphdoctor.target.target import Inputs
from graphdoctor.values.locations import Location

Path = list[int]  # a number for each operator with the shapes of what it made, in order


@dataclass(frozen=True)
class Outcome:
    """What a run of the step returned, and which way it took; `place`: where the asked-for operator is."""

    result: object
    path: Path
    place: Location | None = None

    @cached_property
    def is_finite(self) -> bool:
        """Whether all floating tensors that the step returned are; one that returns none is."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return all(map(_has_finite_values, leaves(self.result, "output").values()))


class RunOn(Protocol):
    """Runs the step on copies of inputs, and finds the place of the operator `at`."""

    def __call__(self, inputs: Inputs, *, at: int = -1) -> Outcome: ...


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


def _has_finite_values(leaf: object) -> bool:
    values = floating_values(leaf)
    return values is None or all(map(math.isfinite, least_and_largest(values)))


def least_and_largest(values: torch.Tensor) -> tuple[float, float]:
    """Of floating values, in one pass and without memory for each; both are NaN where one of them is."""
    if not values.numel():
        return 0.0, 0.0
    # float8 lacks the operator.
    low, high = torch.aminmax(values.float() if values.dtype.itemsize == 1 else values)
    return float(low), float(high)


def floating_values(leaf: object) -> torch.Tensor | None:
    """What there is to look at for NaN and infinity; of a sparse tensor, what it holds."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.is_nested:
        return None
    return parts_of(leaf)[0].detach() if has_memory(leaf) else None
