"""The numbers that captured operators got -> which of them the program has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.measure.audit.places import (
    CapturedFrames,
    Item,
    Key,
    Place,
    expressions_of_program,
)
from graphdoctor.target.frames import is_machinery, locate
from graphdoctor.target.state.kinds.written import MISSING
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.locations import Location

_NUMBERS = (int, float, complex)
# So many operators get these that equality says nothing.
_COMMON: frozenset[Any] = frozenset({0, 1, -1})
_COPIES = frozenset({"copy_", "_to_copy"})  # a replay reads pinned memory again


@dataclass(slots=True)
class FrozenNumber:
    """A place in the program, and the number that a captured operator got from there."""

    place: Place
    value: Any
    operator: str
    location: Location | None
    has_varied: bool = False  # within the capture


Sources = dict[Key, FrozenNumber]


class CapturedNumbers(Observer):
    """During one capture, finds the places whose numbers operators get, and the options of optimizers that step."""

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self._frames = CapturedFrames()
        self._step: list[tuple[str, list[Any], Location | None]] | None = None
        self._sources: Sources = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """See steps of optimizers while the block runs."""
        hooks = (
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._stepped),
        )
        try:
            yield
        finally:
            for each in hooks:
                each.remove()

    def sources(self) -> Sources:
        """What was found. A place that gave several numbers in one capture is a loop's, and left out."""
        return {key: each for key, each in self._sources.items() if not each.has_varied}

    def after(self, call: Call) -> None:
        if not call.on_cuda:
            return
        numbers = list(_numbers_in((call.args, call.kwargs)))
        if call.facts.base_name not in _COPIES:
            hosts = (each for each in call.inputs if not each.dim() and not each.is_meta)
            numbers += [n for each in hosts if (n := self._number(each)) is not MISSING]
        if self._step is not None:
            self._step.append((call.facts.name, numbers, locate().location))
        if numbers:
            self._match(call.facts.name, numbers)

    def _match(self, operator: str, numbers: list[Any]) -> None:
        location = None
        nearest: FrameType | None = None  # of the user's
        for frame, expression in expressions_of_program():
            for operand in expression.operands:
                found = expression.computed(operand, self._number)
                if found is None or (value := found.value) not in numbers:
                    continue
                if nearest is not None and (type(value) is not float or value in _COMMON):
                    continue
                for place, number, _ in found.places():
                    if self._lasts(place, number):
                        location = location or locate().location
                        self._add(FrozenNumber(place, number, operator, location))
            if nearest is None and not is_machinery(frame.f_code.co_filename):
                nearest = frame

    def _lasts(self, place: Place, number: Any) -> bool:
        """Whether the place is there after the capture, and its name means the same then."""
        # A variable of a loop, or a length, has other uses later.
        is_variable = not isinstance(place.root, ref) and len(place.path) < 2
        return self._frames.holds(place) and (not is_variable or type(number) is float)

    def _add(self, found: FrozenNumber) -> None:
        known = self._sources.setdefault(found.place.key, found)
        known.has_varied = known.has_varied or known.value != found.value

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._step = []

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        calls, self._step = self._step, None
        if not calls:
            return
        for index, group in enumerate(optimizer.param_groups):
            if all(each.grad is None for each in group["params"]):
                continue
            options = {name: self._numbers_of(group.get(name)) for name in optimizer.defaults}
            others = [number for numbers in options.values() for number in numbers]
            for name, numbers in options.items():
                used = next(
                    (
                        each
                        for wanted in _derived(numbers, others)
                        for each in calls
                        if not wanted.isdisjoint(each[1])
                    ),
                    None,
                )
                # Each step is in proportion to its rate, whatever else it is multiplied with.
                if used is None and name == "lr" and numbers:
                    used = calls[-1]
                if used is None:
                    continue
                path = ("param_groups", Item(index), Item(name))
                text = f'{type(optimizer).__name__}.param_groups[{index}]["{name}"]'
                value = self.value_of(group[name])
                self._add(FrozenNumber(Place(ref(optimizer), path, text), value, used[0], used[2]))

    def _numbers_of(self, value: object) -> list[Any]:
        found = self.value_of(value)
        if found is MISSING:
            return []
        return list(found) if isinstance(found, tuple) else [found]

    def value_of(self, value: object) -> Any:
        """A number, or a tuple of several such as betas; MISSING of anything else."""
        return value_of(value, self._table)

    def _number(self, value: object) -> Any:
        return number_of(value, self._table)


def changed_numbers(
    sources: Sources, frames: list[FrameType], table: StorageTable
) -> Iterator[tuple[FrozenNumber, Any]]:
    """Places that have another number than at capture, with that number; each is given once."""
    for key, each in list(sources.items()):
        value = value_of(each.place.read(frames), table)
        if value is not MISSING and value != each.value and value == value:
            del sources[key]
            yield each, value


def number_of(value: object, table: StorageTable) -> Any:
    """A number, or what a tensor without dimensions on the host holds; MISSING of anything else."""
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, torch.Tensor) and not value.dim() and not table.is_cuda(value):
        with plain_torch():
            return value.item()
    return MISSING


def value_of(value: object, table: StorageTable) -> Any:
    """The same, also of a few numbers in a tuple or list."""
    if isinstance(value, (tuple, list)):
        numbers = tuple(number_of(each, table) for each in value[:4])
        return MISSING if MISSING in numbers or not numbers else numbers
    return number_of(value, table)


def _derived(numbers: list[Any], others: list[Any]) -> Iterator[set[Any]]:
    """What optimizers compute of an option before they hand it to an operator, the likeliest first."""
    products = [one * other for one in numbers for other in others]
    yield {each for one in numbers for each in (one, -one)} - _COMMON
    yield {1 - one for one in numbers} - _COMMON
    yield {each for one in products for each in (one, -one, 1 - one)} - _COMMON


def _numbers_in(value: object) -> Iterator[Any]:
    if type(value) in _NUMBERS:
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers_in(each)
    elif isinstance(value, Mapping):
        yield from _numbers_in(tuple(value.values()))
