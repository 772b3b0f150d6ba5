"""What differs from call to call: tensors in attributes, as of `self.loss = ...`, and floats that the program sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Protocol
from weakref import ref

import torch

from graphdoctor.captured.step_optimizers import FilledNumber, float_behind
from graphdoctor.captured.step_python import CodeSeen
from graphdoctor.target.state.attributes import attributes, is_stateful
from graphdoctor.target.state.variables import cells_of, global_names, is_user_class
from graphdoctor.target.state.walk import Walk

_MOST_REFITS = 3
_Key = tuple[int, str]  # which holder it is, and the name in it


class Holder(Protocol):
    """What has values under names: the `__dict__` of an object or a module, or one variable of a closure."""

    def get(self, name: str, /) -> object: ...

    def __setitem__(self, name: str, value: object, /) -> None: ...


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that functions share with the one around them."""

    cell: CellType

    def get(self, name: str, /) -> object:
        try:
            return self.cell.cell_contents
        except ValueError:  # it is not bound yet
            return None

    def __setitem__(self, name: str, value: object, /) -> None:
        self.cell.cell_contents = value


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute or a variable, and the tensor that it holds while the step is studied, guarded and replayed."""

    holder: Holder
    name: str
    standing: torch.Tensor

    def is_like(self, other: torch.Tensor) -> bool:
        one = self.standing
        return (other.shape, other.dtype, other.device) == (one.shape, one.dtype, one.device)

    def load(self) -> str:
        """Copy the attribute's tensor into the standing one; returns why it does not fit, or ""."""
        now, standing = self.holder.get(self.name), self.standing
        if now is standing:
            return ""
        if not isinstance(now, torch.Tensor) or not self.is_like(now) or now.requires_grad:
            return f"the tensor in the attribute {self.name} is not like the captured one"
        standing.copy_(now)
        return ""


@dataclass(frozen=True, slots=True)
class NumberPlace(Place):
    """An attribute or a variable with a float, such as a loss weight, that the program changes between steps."""

    number: FilledNumber

    def load(self) -> str:
        """Fill the tensor with the float; returns why there is none, or ""."""
        now = self.holder.get(self.name)
        if type(now) is not float:
            return f"{self.name} is no float, as it was at the capture"
        self.number.fill(now)
        return ""


@dataclass(frozen=True, slots=True)
class _Count:
    """An integer in an attribute that the program changes between steps, as it is while the step is guarded."""

    holder: Holder
    name: str
    standing: int
    of_class: type


class KeptResults:
    """The attributes of modules and other objects into which the step, or the program between two steps, puts
    another tensor each time.

    What the step puts there is a result of the call: after each replay the attribute has a copy, without autograd
    history. What the step finds there and reads is an input. So is a float that the program, and not the step, changes,
    also in a global or a variable of an enclosing function that the step's code reads. An integer in an attribute that
    the program changes, such as a trainer's `global_step`, is no difference if the step's code does not read it.
    """

    def __init__(self, roots: Mapping[str, object], code_seen: CodeSeen) -> None:
        self._roots, self._code_seen = roots, code_seen
        self._places: dict[_Key, Place] = {}
        self._counts: dict[_Key, _Count] = {}
        self._last: dict[_Key, ref[torch.Tensor] | float] = {}
        self._fixed: set[_Key] = set()  # numbers that are guarded as they are
        self._standing: list[object] = []
        self._gives_floats = False
        self._refits = 0

    def __len__(self) -> int:
        return len(self._places) + len(self._counts)

    @property
    def keys(self) -> frozenset[tuple[int, str]]:
        """What changes from call to call: the id of a dictionary or a cell, and the name in it."""
        return frozenset(self._places) | frozenset(self._counts)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The standing tensors."""
        return [place.standing for place in self._places.values()]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe an eager call, and what changed since the one before."""
        self._look()
        yield
        self._look(is_by_step=True)
        # Code that ran for the first time may read a count.
        self._counts = {
            key: count
            for key, count in self._counts.items()
            if key not in self._fixed and not self._code_seen.may_read(count.name, count.of_class)
        }

    def finds_more(self) -> bool:
        """Whether the program has changed an attribute since the last look that graphs read as input from now on."""
        known = len(self)
        self._look()
        return len(self) > known

    def refits(self) -> bool:
        """Let tensors of the sizes that attributes have now be the standing ones; returns whether there were others.

        Validation and a shorter last batch leave a mask of their length, which the next step replaces: it is studied
        with the mask that it finds and reads. A size that differs in each call is left as it is.
        """
        if self._refits == _MOST_REFITS:
            return False
        changed = dict[_Key, Place]()
        for key, place in self._places.items():
            now = place.holder.get(place.name)
            if isinstance(now, torch.Tensor) and not place.is_like(now):
                with torch.inference_mode(False):
                    changed[key] = Place(place.holder, place.name, now.detach().clone())
        self._refits += bool(changed)
        self._places |= changed
        return bool(changed)

    @property
    def has_numbers(self) -> bool:
        return any(isinstance(place, NumberPlace) for place in self._places.values())

    def fix_numbers(self) -> bool:
        """Let the step have all numbers as floats from now on; returns whether there were others."""
        numbers = {key for key, place in self._places.items() if isinstance(place, NumberPlace)}
        self._fixed |= numbers
        self._places = {key: each for key, each in self._places.items() if key not in numbers}
        return bool(numbers)

    def _look(self, *, is_by_step: bool = False) -> None:
        seen: dict[_Key, ref[torch.Tensor] | float] = {}
        of_classes: set[object] = set()
        for _, value, _ in Walk(self._roots):
            if isinstance(value, type):
                of_classes.update(filter(_is_function, vars(value).values()))
            elif isinstance(value, MethodType) and _is_function(value.__func__):
                self._code_seen.reached.add(value.__func__.__code__)
            if isinstance(value, FunctionType):
                if value in of_classes:  # a method, which the step calls or not
                    of_classes.add(vars(value).get("__wrapped__"))
                else:
                    self._code_seen.reached.add(value.__code__)
                for key, holder, name in _variables_of(value):
                    number = holder.get(name)
                    if type(number) is float:
                        seen[key] = number
                        self._look_at_number(key, holder, name, number, is_by_step=is_by_step)
            if is_stateful(value) and not isinstance(value, torch.nn.Module):
                continue
            attributes_of = attributes(value)
            for name, found in attributes_of.items():
                key = (id(attributes_of), name)
                if type(found) is float:
                    seen[key] = found
                    self._look_at_number(key, attributes_of, name, found, is_by_step=is_by_step)
                elif type(found) is int:
                    seen[key] = found
                    if is_user_class(type(value)):
                        count = _Count(attributes_of, name, found, type(value))
                        self._look_at_count(key, count, is_by_step=is_by_step)
                elif type(found) is torch.Tensor and found.is_cuda:
                    # Weak: otherwise the memory of a call's results would not be there for the next call's.
                    seen[key] = ref(found)
                    before = self._last.get(key)
                    if (
                        isinstance(before, ref)
                        and before() is not found
                        and key not in self._places
                    ):
                        with torch.inference_mode(False):  # calls outside it write to the copy, too
                            self._places[key] = Place(attributes_of, name, found.detach().clone())
        self._last = seen

    def _look_at_number(
        self, key: _Key, holder: Holder, name: str, now: float, *, is_by_step: bool
    ) -> None:
        # By text: a NaN is no change.
        if repr(self._last.get(key, now)) == repr(now) or key in self._fixed:
            return
        if is_by_step:
            self._fixed.add(key)
        elif key not in self._places:
            number = FilledNumber(now, torch.device("cuda"))
            self._places[key] = NumberPlace(holder, name, number.tensor, number)

    def _look_at_count(self, key: _Key, count: _Count, *, is_by_step: bool) -> None:
        now = count.standing
        if self._last.get(key, now) == now or key in self._fixed:
            return
        if is_by_step:
            self._fixed.add(key)
        elif key not in self._counts and not self._code_seen.may_read(count.name, count.of_class):
            self._counts[key] = count

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let the standing tensors and counts be in the attributes and variables."""
        places: list[Place | _Count] = [*self._places.values(), *self._counts.values()]
        now = [place.holder.get(place.name) for place in places]
        self._standing = [
            float_behind(place.standing)
            if self._gives_floats and isinstance(place, NumberPlace)
            else place.standing
            for place in places
        ]
        for place, standing in zip(places, self._standing, strict=True):
            place.holder[place.name] = standing
        try:
            yield
        finally:
            for place, value in zip(places, now, strict=True):
                place.holder[place.name] = value

    @contextmanager
    def with_floats(self) -> Iterator[None]:
        """Let the step have numbers as floats in this block, as in eager."""
        self._gives_floats = True
        try:
            yield
        finally:
            self._gives_floats = False

    def left(self) -> list[object]:
        """What the step has put into the attributes, None where it has put nothing."""
        found = [place.holder.get(place.name) for place in self._places.values()]
        pairs = zip(found, self._standing, strict=False)  # counts are last
        return [None if value is standing else value for value, standing in pairs]

    def put(self, left: list[object]) -> None:
        """Put into the attributes what `left` gave, or copies of it."""
        for place, value in zip(self._places.values(), left, strict=True):
            if value is not None:
                place.holder[place.name] = value

    def read_by(self, is_read: Callable[[torch.Tensor], bool]) -> list[Place]:
        """The places of which a graph reads the standing tensor."""
        return [place for place in self._places.values() if is_read(place.standing)]


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType)


def _variables_of(function: FunctionType) -> Iterator[tuple[_Key, Holder, str]]:
    """The variables from outside that a user's function names."""
    for namespace, names in global_names(function):
        yield from (((id(namespace), name), namespace, name) for name in names)
    for name, cell in cells_of(function).items():
        yield (id(cell), name), _Variable(cell), name
