"""An object that the program makes anew for each step, such as a closure -> the places in it where the batch lies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch

from graphdoctor.target.program.saved_steps import Beginning, is_given
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.state.plain import SCALARS
from graphdoctor.target.target import Inputs

_DEEPEST = 8
Key = tuple[
    str, Any
]  # how one object leads to the next: "item", "attribute", "cell" or "part", and which


@dataclass(frozen=True, slots=True)
class Place:
    """The way from the object to a value in it that can be set; `name` is for people."""

    keys: tuple[Key, ...]
    name: str

    def value(self, holder: object) -> object:
        """What lies there. Raises LookupError where this object has no such place."""
        for key in self.keys:
            holder = _follow(holder, key)
        return holder

    def setter(self, holder: object) -> Callable[[Any], None]:
        """A function that puts another value there."""
        *way, (kind, which) = self.keys
        for key in way:
            holder = _follow(holder, key)
        at: Any = holder
        if kind == "item":
            return functools.partial(at.__setitem__, which)
        if kind == "cell":
            return functools.partial(setattr, at.__closure__[which], "cell_contents")
        return functools.partial(setattr, at, which)


Places = dict[str, tuple[list[Place], list[Place]]]  # by variable: of batches, and of numbers


@dataclass
class HeldBatches:
    """What lies in objects of the program, as inputs of its step.

    `setters` put an input where the step reads it, by the input's name; `batches` are the inputs of each
    beginning, and `writes` set the numbers of each.
    """

    setters: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    writes: list[list[Callable[[], None]]] = field(default_factory=list)

    def add(self, label: str, put: Callable[[Any], None], values: Sequence[Any]) -> None:
        """One more input, with its value in each beginning."""
        while label in self.setters:
            label += "_"
        self.setters[label] = put
        for own, value in zip(self.batches, values, strict=True):
            own[label] = value


def held_batches(
    places: Places, beginnings: Sequence[Beginning]
) -> tuple[HeldBatches, list[dict[str, object]]]:
    """The batches in variables that are bound anew and are none, and the variables to bind before each step.

    `places` are those in the variables' objects in which the second step, as it began, differed from the first.
    An object that holds a batch is the first step's in all of them, with each step's batch put into it.
    """
    found = HeldBatches(batches=[{} for _ in beginnings], writes=[[] for _ in beginnings])
    variables = [dict(each.variables) for each in beginnings]
    for name, differing in places.items():
        objects = [each.get(name) for each in variables]
        batches, numbers = ([at for at in some if _is_in(at, objects)] for some in differing)
        if batches:
            for each in variables:
                each[name] = objects[0]
            _add(found, name, objects, batches, numbers)
    return found, variables


def _is_in(place: Place, objects: Sequence[object]) -> bool:
    """Whether each object has something of the kind there."""
    try:
        kinds = {type(place.value(each)) for each in objects}
    except LookupError:
        return False
    return len(kinds) == 1


def _add(
    found: HeldBatches, name: str, objects: list[Any], batches: list[Place], numbers: list[Place]
) -> None:
    for place in batches:
        values = [_cloned(place.value(each)) for each in objects]
        found.add(f"{name}.{place.name}", place.setter(objects[0]), values)
    for place in numbers:
        for writes, each in zip(found.writes, objects, strict=True):
            writes.append(functools.partial(place.setter(objects[0]), place.value(each)))


def _cloned(value: object) -> object:
    with torch.inference_mode(False), torch.no_grad():
        return clone_inputs(Inputs((value,), {})).args[0]


def differing_places(first: object, second: object) -> tuple[list[Place], list[Place]]:
    """Where two of them, made for two steps, hold batches, and where numbers that differ.

    What both hold in common, such as the trainer, is the same object in both, and is not looked into.
    """
    batches: list[Place] = []
    numbers: list[Place] = []
    for keys, one, other in _pairs(first, second, (), 0):
        place = Place(keys, ".".join(str(which) for _, which in keys if isinstance(which, str)))
        if is_given(one) and is_given(other):
            batches.append(place)
        elif isinstance(one, SCALARS) and type(one) is type(other) and one != other:
            numbers.append(place)
    return batches, numbers


def _pairs(
    one: object, other: object, keys: tuple[Key, ...], depth: int
) -> Iterator[tuple[tuple[Key, ...], object, object]]:
    """Values that can be set, in both objects; none inside a batch."""
    if one is other or type(one) is not type(other) or depth > _DEEPEST:
        return
    for key, value in _inside(one):
        try:
            matching = _follow(other, key)
        except LookupError:
            continue
        if value is matching:
            continue
        way = (*keys, key)
        is_leaf = isinstance(value, (torch.Tensor, *SCALARS))
        if key[0] != "part" and (is_leaf or is_given(value)):
            yield way, value, matching
        elif not is_leaf:
            yield from _pairs(value, matching, way, depth + 1)


def _inside(holder: object) -> Iterator[tuple[Key, object]]:
    """What an object holds; "part" is what cannot be set."""
    if isinstance(holder, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, MethodType, type)):
        return
    if isinstance(holder, functools.partial):
        yield ("part", "func"), holder.func
        yield ("part", "args"), holder.args
        yield ("part", "keywords"), holder.keywords
    elif isinstance(holder, FunctionType):
        for number, cell in enumerate(holder.__closure__ or ()):
            try:
                yield ("cell", number), cell.cell_contents
            except ValueError:  # not bound yet
                continue
    elif isinstance(holder, Mapping):
        yield from ((("item", key), value) for key, value in holder.items())
    elif isinstance(holder, (list, tuple)):
        kind = "item" if isinstance(holder, list) else "part"
        yield from (((kind, number), value) for number, value in enumerate(holder))
    elif isinstance(own := getattr(holder, "__dict__", None), dict):
        yield from ((("attribute", name), value) for name, value in own.items())


def _follow(holder: Any, key: Key) -> object:
    kind, which = key
    if kind == "cell":
        cells: Sequence[Any] = holder.__closure__ or ()
        return cells[which].cell_contents
    if kind == "attribute" or (kind == "part" and isinstance(which, str)):
        try:
            return getattr(holder, which)
        except AttributeError as error:
            raise LookupError(which) from error
    return holder[which]
