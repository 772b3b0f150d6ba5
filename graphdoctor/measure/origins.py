"""Tensors and numbers of a capture -> the variables and attributes that held them, and what these hold now."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch

from graphdoctor.source.trees import holds, tree_of
from graphdoctor.target.frames import is_machinery, variables_of
from graphdoctor.target.state.walk import Walk

_MOST_FRAMES = 8
_DEEPEST = 4  # containers in each other
_HIDDEN = frozenset({"_parameters", "_buffers"})  # attributes lie there in a module
Number = int | float
GONE = object()


@dataclass(frozen=True, slots=True)
class Origin:
    """A place in the program. `root` is an object, the globals of a module, or a function's code.

    The object is not kept alive, and a function's variable is there while the function runs.
    """

    name: str
    root: ref[Any] | dict[str, Any] | CodeType
    steps: tuple[Any, ...]

    @property
    def is_modules(self) -> bool:
        """Whether a module has it as its parameter or buffer."""
        return self.steps[0] in _HIDDEN

    def now(self, frames: Sequence[FrameType]) -> Any:
        """What is there now; GONE where nothing is."""
        root: Any = self.root
        if isinstance(root, ref):
            owner = root()
            root = getattr(owner, "__dict__", None)
        elif isinstance(root, CodeType):
            root = next((each.f_locals for each in frames if each.f_code is root), None)
        with suppress(LookupError, TypeError):
            for step in self.steps:
                root = root[step]
            return root
        return GONE


def origins_of_tensors(
    roots: dict[str, object], frames: Sequence[FrameType]
) -> Iterator[tuple[Origin, torch.Tensor]]:
    """All tensors that variables of the frames lead to. The walk has to run without modes."""
    for frame in frames:
        root = frame.f_globals if frame.f_locals is frame.f_globals else frame.f_code
        for steps, value in _held(dict(variables_of(frame)), ()):
            if isinstance(value, torch.Tensor):
                yield Origin(_name("", steps), root, steps), value
    for path, value, _ in Walk(roots, with_empty=False):
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, torch.Tensor | type) or not isinstance(attributes, dict):
            continue
        with suppress(TypeError):  # no weak reference to it
            owner = ref(value)
            for steps, held in _held(attributes, ()):
                if isinstance(held, torch.Tensor):
                    yield Origin(_name(str(path), steps), owner, steps), held


def _held(value: Any, steps: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Tensors and numbers in containers, with the steps that lead there."""
    if isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool):
        yield steps, value
    elif len(steps) < _DEEPEST and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _held(item, (*steps, key))
    elif len(steps) < _DEEPEST and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*steps, index))


def _name(path: str, steps: tuple[Any, ...]) -> str:
    for step in steps:
        if isinstance(step, torch.Tensor):
            path += "[...]"
        elif not isinstance(step, str):
            path += f"[{step!r}]"
        elif step not in _HIDDEN:
            path += f".{step}" if path else step
    return path


@dataclass(frozen=True, slots=True)
class NumberOrigin:
    """Where a number came from, and what was computed from it before an operator got it."""

    origin: Origin
    form: str

    def now(self, frames: Sequence[FrameType]) -> Number | None:
        """The argument as it would be now; None where that is not known."""
        value = self.origin.now(frames)
        if isinstance(value, bool) or not isinstance(value, Number):
            return None
        number: Number = _FORMS[self.form](value)
        return number


_FORMS: dict[str, Callable[[Any], Any]] = {
    "{}": lambda value: value,
    "-{}": lambda value: -value,
    "1 - {}": lambda value: 1 - value,
}


def origins_of_number(number: Number, frame: FrameType | None) -> list[NumberOrigin]:
    """Variables, attributes and items that the lines of the callers name and that have this value.

    Torch's own objects count with all that they hold: an optimizer, a module. A frame is the caller.
    """
    found: list[NumberOrigin] = []
    users = 0
    while frame is not None and users < _MOST_FRAMES:
        if is_machinery(frame.f_code.co_filename):
            candidates = _of_torchs_object(frame.f_locals.get("self"))
        else:
            users += 1
            candidates = _of_line(frame)
        for origin, value in candidates:
            form = _form(value, number)
            if form is not None:
                found.append(NumberOrigin(origin, form))
        if found:
            return found
        frame = frame.f_back
    return found


def _form(value: Any, number: Number) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Number):
        return None
    same = (form for form, compute in _FORMS.items() if compute(value) == number)
    return next((form for form in same if form != "1 - {}" or isinstance(value, float)), None)


def _of_torchs_object(value: Any) -> Iterator[tuple[Origin, Any]]:
    if isinstance(value, torch.optim.Optimizer):
        for index, group in enumerate(value.param_groups):
            settings = {key: held for key, held in group.items() if key != "params"}
            for steps, held in _held(settings, ("param_groups", index)):
                yield Origin(_name(type(value).__name__, steps), ref(value), steps), held
    elif isinstance(value, torch.nn.Module):
        for name, held in vars(value).items():
            yield Origin(_name(type(value).__name__, (name,)), ref(value), (name,)), held


def _of_line(frame: FrameType) -> Iterator[tuple[Origin, Any]]:
    for names in _chains(frame.f_code.co_filename, frame.f_lineno):
        holder = _holder(frame, names[0])
        if holder is None:
            continue
        is_local = names[0] in holder.f_locals and holder.f_locals is not holder.f_globals
        value: Any = (holder.f_locals if is_local else holder.f_globals).get(names[0])
        root: Any = holder.f_code if is_local else holder.f_globals
        steps: tuple[Any, ...] = (names[0],)
        with suppress(LookupError, TypeError):
            for name in names[1:]:
                attributes = getattr(value, "__dict__", None)
                if isinstance(attributes, dict):
                    root, steps, value = ref(value), (name,), attributes[name]
                else:
                    steps, value = (*steps, name), value[name]
            yield Origin(_name("", names), root, steps), value


def _holder(frame: FrameType, name: str) -> FrameType | None:
    """The frame that has a variable: the one that made the function, where the function only uses it."""
    if name not in frame.f_code.co_freevars:
        return frame
    outer = frame.f_back
    while outer is not None and name not in outer.f_code.co_cellvars:
        outer = outer.f_back
    return outer


@cache
def _chains(file: str, line: int) -> tuple[tuple[Any, ...], ...]:
    """What the statement of a line reads: ("lr",), ("self", "scale"), ("group", "lr")."""
    tree = tree_of(file)
    if tree is None:
        return ()
    around = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and holds(each, line)]
    if not around:
        return ()
    inner = min(around, key=lambda each: (each.end_lineno or each.lineno) - each.lineno)
    nodes = [each for each in ast.walk(inner) if isinstance(each, ast.expr) and holds(each, line)]
    return tuple(dict.fromkeys(chain for node in nodes if (chain := _chain(node))))


def _chain(node: ast.expr) -> tuple[Any, ...]:
    match node:
        case ast.Name(id=name):
            return (name,)
        case (
            ast.Attribute(value=value, attr=name)
            | ast.Subscript(value=value, slice=ast.Constant(value=name))
        ):
            before = _chain(value)
            return (*before, name) if before else ()
    return ()


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
