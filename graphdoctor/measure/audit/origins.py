"""Tensors and numbers of a capture -> the variables and attributes that held them, and what these hold now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch

from graphdoctor.measure.audit.places import (
    Expression,
    Item,
    Place,
    Step,
    Variable,
    expressions_of_program,
    frames_of_program,
)
from graphdoctor.target.frames import is_machinery, variables_of
from graphdoctor.target.state.kinds.written import MISSING
from graphdoctor.target.state.walk import Walk

_MOST_FRAMES = 8
_DEEPEST = 4  # containers in each other
_ENTRIES = frozenset({"_parameters", "_buffers"})  # of a module, which are read by their names
Number = int | float


def origins_of_tensors(
    roots: dict[str, object], frames: Sequence[FrameType]
) -> Iterator[tuple[Place, torch.Tensor]]:
    """All tensors that variables of the frames lead to. The walk has to run without modes."""
    for frame in frames:
        variables = variables_of(frame)
        is_global = variables is frame.f_globals
        for name, value in list(variables.items()):
            root = frame.f_globals if is_global else Variable(frame.f_code, name)
            for steps, held in _held(value, (Item(name),)):
                if isinstance(held, torch.Tensor):
                    yield Place(root, steps if is_global else steps[1:], _text("", steps)), held
    for path, value, _ in Walk(roots, with_empty=False):
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, torch.Tensor | type) or not isinstance(attributes, dict):
            continue
        entries = dict(attributes)
        if isinstance(value, torch.nn.Module):
            for kind in _ENTRIES:  # a scripted module has none
                entries |= attributes.get(kind, {})
        with suppress(TypeError):  # no weak reference to it
            owner = ref(value)
            for name, entry in entries.items():
                for steps, held in _held(entry, (name,)) if name not in _ENTRIES else ():
                    if isinstance(held, torch.Tensor):
                        yield Place(owner, steps, _text(str(path), steps)), held


def is_modules(place: Place) -> bool:
    """Whether a module has it as its parameter, buffer or attribute."""
    owner = place.root() if isinstance(place.root, ref) else None
    return isinstance(owner, torch.nn.Module) and len(place.path) == 1


def _held(value: Any, steps: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Tensors and numbers in containers, with the steps that lead there."""
    if isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool):
        yield steps, value
    elif len(steps) < _DEEPEST and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _held(item, (*steps, Item(key)))
    elif len(steps) < _DEEPEST and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*steps, Item(index)))


def _text(path: str, steps: tuple[Step, ...]) -> str:
    for step in steps:
        key: Any = step.key if isinstance(step, Item) else step
        if isinstance(key, str) and key.isidentifier():
            path += f".{key}" if path else key
        else:
            path += "[...]" if isinstance(key, torch.Tensor) else f"[{key!r}]"
    return path


@dataclass(frozen=True, slots=True)
class NumberOrigin:
    """Where a number came from, and what was computed from it before an operator got it."""

    place: Place
    form: str

    def now(self, frames: Sequence[FrameType]) -> Number | None:
        """The argument as it would be now; None where that is not known."""
        value = self.place.read(list(frames))
        if isinstance(value, bool) or not isinstance(value, Number):
            return None
        number: Number = _FORMS[self.form](value)
        return number


_FORMS: dict[str, Callable[[Any], Any]] = {
    "{}": lambda value: value,
    "-{}": lambda value: -value,
    "1 - {}": lambda value: 1 - value,
}


def origins_of_number(number: Number) -> list[NumberOrigin]:
    """Places that the expressions of the callers read and that have this value, of the nearest caller.

    Torch's own objects count with all that they hold: an optimizer, a module.
    """
    expressions = {id(frame): expression for frame, expression in expressions_of_program()}
    for frame in frames_of_program():
        candidates: Iterable[tuple[Place, Any]] = ()
        if id(frame) in expressions:
            candidates = _of_expression(expressions[id(frame)])
        if is_machinery(frame.f_code.co_filename):
            candidates = _of_torchs_object(variables_of(frame).get("self"))
        forms = ((place, _form(value, number)) for place, value in candidates)
        found = [NumberOrigin(place, form) for place, form in forms if form is not None]
        if found:
            return found
    return []


def _form(value: Any, number: Number) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Number):
        return None
    same = (form for form, compute in _FORMS.items() if compute(value) == number)
    return next((form for form in same if form != "1 - {}" or isinstance(value, float)), None)


def _of_torchs_object(value: Any) -> Iterator[tuple[Place, Any]]:
    name = type(value).__name__
    if isinstance(value, torch.optim.Optimizer):
        for index, group in enumerate(value.param_groups):
            settings = {key: held for key, held in group.items() if key != "params"}
            for steps, held in _held(settings, ("param_groups", Item(index))):
                yield Place(ref(value), steps, _text(name, steps)), held
    elif isinstance(value, torch.nn.Module):
        for key, held in vars(value).items():
            yield Place(ref(value), (key,), f"{name}.{key}"), held


def _of_expression(expression: Expression) -> Iterator[tuple[Place, Any]]:
    for operand in expression.operands:
        for place, value in expression.numbers(operand, _plain)[1:]:
            if place is not None:
                yield place, value


def _plain(value: object) -> object:
    return value if type(value) in (int, float) else MISSING


def users_frames() -> list[FrameType]:
    """The user's frames that called, the nearest first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _MOST_FRAMES:
        if not is_machinery(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def roots_of(frames: Sequence[FrameType]) -> dict[str, object]:
    """The variables of some frames."""
    roots: dict[str, object] = {}
    for frame in frames:
        for names in (variables_of(frame), frame.f_globals):
            for name, value in list(names.items()):
                if not name.startswith("__") and not isinstance(value, _CODE):
                    roots.setdefault(name, value)
    return roots


_CODE = (ModuleType, FunctionType, type)
