"""The float arguments of a step that change between calls, such as a loss weight: inputs on the GPU for its graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphdoctor.captured.step_optimizers import FilledNumber, float_behind

Place = int | str
Call = tuple[tuple[Any, ...], dict[str, Any]]


class ChangingArguments:
    """The arguments of a step that graphs read from 0-d tensors in place of the program's floats.

    Eager calls, also those that replays are compared with, get the floats. A number that the step needs in Python,
    for a branch or a size, is fixed: a graph serves one value of it.
    """

    def __init__(self) -> None:
        self._first: dict[Place, float] = {}
        self._numbers: dict[Place, FilledNumber] = {}
        self._fixed: set[Place] = set()

    def with_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call with a tensor for each float that has changed since the first call."""
        given = (*args, *kwargs.values())
        return _changed(self._filled, args, kwargs) if float in map(type, given) else (args, kwargs)

    def with_floats(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call as the program made it; of a copy of its tensors, a call that fills them with the same values."""
        return _changed(self._float, args, kwargs) if self._numbers else (args, dict(kwargs))

    def are_in(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with tensors has one in the place of a float."""
        given = [*args, *kwargs.values()]
        return any(number.tensor is each for number in self._numbers.values() for each in given)

    def fix(self) -> None:
        """Give each number that changes to the step as a float from now on."""
        self._fixed |= self._numbers.keys()
        self._numbers.clear()

    def _filled(self, place: Place, argument: object) -> object:
        if type(argument) is not float or place in self._fixed:
            return argument
        number = self._numbers.get(place)
        if number is None:
            # By text, as in signatures: a NaN is no change.
            if repr(self._first.setdefault(place, argument)) == repr(argument):
                return argument
            number = self._numbers[place] = FilledNumber(argument, torch.device("cuda"))
        number.fill(argument)
        return number.tensor

    def _float(self, place: Place, argument: object) -> object:
        number = self._numbers.get(place)
        if number is None or not isinstance(argument, torch.Tensor):
            return argument
        return number.filled if argument is number.tensor else float_behind(argument)


def _changed(
    change: Callable[[Place, object], object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Call:
    changed = tuple([change(place, each) for place, each in enumerate(args)])
    return changed, {name: change(name, each) for name, each in kwargs.items()}
