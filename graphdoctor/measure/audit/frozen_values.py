"""Finds captured numbers and memory that the program has changed since, and the line that did it last."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import ref

import torch

from graphdoctor.device.observe.operators import Call, Observer, each_in
from graphdoctor.device.observe.storages import StorageTable, is_plain
from graphdoctor.measure.audit.places import (
    CapturedFrames,
    Computed,
    Item,
    Key,
    Leaf,
    Place,
    Step,
    expressions_of_program,
    follow,
    frames_of_program,
)
from graphdoctor.measure.watch.profiler import replaced
from graphdoctor.operators import COPIES
from graphdoctor.target.frames import is_machinery, locate, variables_of
from graphdoctor.target.state.kinds.kind import MISSING
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.locations import Location

_NUMBERS = (int, float, complex)
# So many operators get these that equality says nothing.
_COMMON: frozenset[Any] = frozenset({0, 1, -1})


@dataclass(frozen=True, slots=True, eq=False)
class OptionOrigin:
    """What an optimizer computes of an option, or of a product of two, before an operator gets it."""

    options: tuple[Leaf, ...]
    form: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """The optimizer's class and the way to each option."""
        return " * ".join(each.place.text for each in self.options)

    def places(self) -> Iterator[Leaf]:
        """The options."""
        yield from self.options

    def now(self, frames: list[FrameType]) -> Any:
        """The argument as it would be now; None if that is not known."""
        values = [each.place.read(frames) for each in self.options]
        is_known = all(type(each) in (int, float) for each in values)
        return self.form(math.prod(values)) if is_known else None


NumberOrigin = Computed | OptionOrigin
# The likeliest first: a number that one of the first explains is not looked for among the others.
_FORMS: tuple[tuple[int, tuple[Callable[[Any], Any], ...]], ...] = (
    (1, (operator.pos, operator.neg)),
    (1, (lambda value: 1 - value,)),
    (2, (operator.pos, operator.neg, lambda value: 1 - value)),
)


class NumberOrigins:
    """During one capture, finds what the callers compute an operator's numbers from."""

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self._frames = CapturedFrames()

    def of(self, numbers: Collection[Any]) -> Iterator[tuple[Any, NumberOrigin]]:
        """What can be read again after the capture, with the number; the nearest caller's first."""
        for optimizer in stepping():
            yield from _of_options(options_of(optimizer, self._table), numbers)
        is_nearest = True
        for frame, expression in expressions_of_program():
            for operand in expression.operands:
                found = expression.computed(operand, lambda value: number_of(value, self._table))
                if found is None or (value := found.value) not in numbers:
                    continue
                is_sure = is_nearest or (type(value) is float and value not in _COMMON)
                if is_sure and any(map(self.lasts, found.places())):
                    yield value, found
            is_nearest = is_nearest and is_machinery(frame.f_code.co_filename)

    def lasts(self, leaf: Leaf) -> bool:
        """Whether the place is there after the capture, and its name means the same then."""
        # A variable of a loop, or a length, has other uses later.
        is_variable = not isinstance(leaf.place.root, ref) and len(leaf.place.path) < 2
        is_other_later = is_variable and type(leaf.number) is not float
        return self._frames.holds(leaf.place) and not is_other_later


def stepping() -> Iterator[torch.optim.Optimizer]:
    """The optimizers whose steps call this operator."""
    for frame in frames_of_program():
        code = frame.f_code
        if code.co_name == "step" and code.co_varnames[:1] == ("self",):
            optimizer = variables_of(frame).get("self")
            if isinstance(optimizer, torch.optim.Optimizer):
                yield optimizer


def options_of(optimizer: torch.optim.Optimizer, table: StorageTable) -> list[list[Leaf]]:
    """The numbers of each group that steps."""
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        if all(each.grad is None for each in group["params"]):
            continue
        groups.append(options := list[Leaf]())
        for name in optimizer.defaults:
            path: tuple[Step, ...] = ("param_groups", Item(index), Item(name))
            text = f'{type(optimizer).__name__}.param_groups[{index}]["{name}"]'
            value = group.get(name)
            items = enumerate(value) if isinstance(value, tuple | list) else ()
            places = [(path, text, value)]
            places += [((*path, Item(at)), f"{text}[{at}]", item) for at, item in items]
            for path, text, value in places:
                if (number := number_of(value, table)) is not MISSING:
                    options.append(Leaf(Place(ref(optimizer), path, text), number, None))
    return groups


def _of_options(
    groups: list[list[Leaf]], numbers: Collection[Any]
) -> Iterator[tuple[Any, OptionOrigin]]:
    for options in groups:
        left = set(numbers) - _COMMON
        for count, forms in _FORMS:
            found = [
                (value, OptionOrigin(factors, form))
                for factors in (
                    itertools.combinations_with_replacement(options, count) if left else ()
                )
                for form in forms
                if (value := form(math.prod(each.number for each in factors))) in left
            ]
            yield from found
            left -= {value for value, _ in found}


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

    def __init__(self, table: StorageTable, origins: NumberOrigins) -> None:
        self._table, self._origins = table, origins
        self._sources: Sources = {}
        self._rates: Sources = {}

    def sources(self) -> Sources:
        """What was found. A place that gave several numbers in one capture is a loop's, and left out."""
        found = {**self._rates, **self._sources}
        return {key: each for key, each in found.items() if not each.has_varied}

    def after(self, call: Call) -> None:
        if not call.on_cuda:
            return
        found = each_in((call.args, call.kwargs), _NUMBERS)
        numbers = [number for number in found if type(number) in _NUMBERS]  # no flags
        if call.facts.base_name not in COPIES:  # whose replay reads pinned memory again
            hosts = (each for each in call.inputs if not each.dim() and not each.is_meta)
            found = (number_of(each, self._table) for each in hosts)
            numbers += [number for number in found if number is not MISSING]
        # Each step is in proportion to its rate, whatever the rate is multiplied with.
        options = [
            o for each in stepping() for group in options_of(each, self._table) for o in group
        ]
        rates = [each for each in options if each.place.path[-1] == Item("lr")]
        origins = self._origins.of(numbers) if numbers else ()
        leaves = [
            leaf for _, each in origins for leaf in each.places() if self._origins.lasts(leaf)
        ]
        name, location = call.facts.name, locate().location if rates or leaves else None
        for place, number, _ in rates:  # the last operator changes the weights
            self._rates[place.key] = FrozenNumber(place, number, name, location)
        for place, number, _ in leaves:
            known = FrozenNumber(place, number, name, location)
            known = self._sources.setdefault(place.key, known)
            known.has_varied = known.has_varied or known.value != number


def changed_numbers(
    sources: Sources, frames: list[FrameType], table: StorageTable
) -> Iterator[tuple[FrozenNumber, Any]]:
    """Places that have another number than at capture, with that number; each is given once."""
    for key, each in list(sources.items()):
        value = number_of(each.place.read(frames), table)
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


_data: Any = torch._C.TensorBase.data
# step() itself warns, and names the line that calls it.
_SCHEDULES = (
    (torch.optim.lr_scheduler.LRScheduler, "_update_lr"),
    (torch.optim.lr_scheduler.ReduceLROnPlateau, "_reduce_lr"),
)


class ChangedMemory:
    """Sees assignments to attributes of modules and to `.data`, conversions such as `.to()`, and schedulers.

    `changes` counts what was seen of captured memory, resized storages too.
    """

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self.captured: set[int] = set()  # by number
        self.changes = 0
        self.lines: dict[int, Location | None] = {}
        self.lines_of_places: dict[Key, Location | None] = {}
        self._attributes: dict[tuple[int, Step], Place] = {}
        self._options: dict[int, list[Place]] = {}  # by the identity of an optimizer

    def watch(self, places: Iterable[Place]) -> None:
        """Look at what changes the values in these places."""
        for each in places:
            if isinstance(each.root, ref) and isinstance(each.root(), torch.optim.Optimizer):
                self._options.setdefault(id(each.root()), []).append(each)
            elif isinstance(each.root, ref):
                *way, name = each.path
                self._attributes[id(follow(each.root(), tuple(way))), name] = each

    @contextmanager
    def on(self) -> Iterator[None]:
        """Look at these calls while the block runs."""
        module = torch.nn.Module
        ours = {
            "__setattr__": self._assigns(module.__setattr__),
            "_apply": self._converts(module._apply),
        }
        data: Any = property(_data.__get__, self._set_data)
        with ExitStack() as replacing:
            replacing.enter_context(replaced(module, ours))
            replacing.enter_context(replaced(torch.Tensor, {"data": data}))
            resizes = {"resize_": self._resizes(torch.UntypedStorage.resize_)}
            replacing.enter_context(replaced(torch.UntypedStorage, resizes))
            for scheduler, name in _SCHEDULES:
                method = vars(scheduler).get(name)
                if method is not None:
                    replacing.enter_context(replaced(scheduler, {name: self._schedules(method)}))
            yield

    def _assigns(self, method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def __setattr__(module: torch.nn.Module, name: str, value: Any) -> None:
            before = None
            if self.captured:
                held = module.__dict__
                before = held.get("_parameters", {}).get(name)
                if before is None:
                    before = held.get("_buffers", {}).get(name)
            number = self._number(before)
            method(module, name, value)
            self._note(number, value)
            if self._attributes and (place := self._attributes.get((id(module), name))):
                self.lines_of_places[place.key] = locate().location

        return __setattr__

    def _schedules(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def update(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            places = self._options.get(id(getattr(scheduler, "optimizer", None)), ())
            before = [each.read([]) for each in places]
            result = method(scheduler, *args, **kwargs)
            for each, value in zip(places, before, strict=True):
                if each.read([]) is not value:
                    self.lines_of_places[each.key] = locate().location
            return result

        return update

    def _converts(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def _apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = [
                (entries, name, self._number(tensor))
                for entries in (module._parameters, module._buffers)
                for name, tensor in entries.items()
            ]
            converted = method(module, *args, **kwargs)
            for entries, name, number in before:
                self._note(number, entries.get(name))
            return converted

        return _apply

    def _set_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        number = self._number(tensor)
        _data.__set__(tensor, value)
        self._note(number, tensor)

    def _number(self, tensor: Any) -> int | None:
        """Of the captured memory that a tensor has; None of other memory."""
        if not self.captured or not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
            return None
        with torch._C.DisableTorchFunction():
            info = self._table.info_of(tensor.untyped_storage())
        return info.number if info is not None and info.number in self.captured else None

    def _note(self, number: int | None, now: Any) -> None:
        if number is not None and self._number(now) != number:
            self.changes += 1
            self.lines[number] = locate().location

    def _resizes(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            info = self._table.info_of(storage)
            self.changes += info is not None and info.number in self.captured
            return method(storage, *args, **kwargs)

        return resize_
