"""A training step of a program: how it begins each time, where its batch is held, and its lines as a target."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import setitem
from types import FrameType, MethodType
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from graphdoctor.target.program.loops import STEPS_TO_LEARN, Follower, Loop
from graphdoctor.target.program.rebuild import (
    NotRebuilt,
    Rebuilt,
    frame_values,
    rebuild,
    variables_of,
)
from graphdoctor.target.program.saved_steps import (
    Beginning,
    GivenAgain,
    SavedSteps,
    TakenItems,
    Turn,
    copied_container,
    in_turn,
    is_given,
    is_iterator,
    is_plain_container,
)
from graphdoctor.target.program.statements import Span, extended
from graphdoctor.target.program.step import SeenStep
from graphdoctor.target.roots import roots_of
from graphdoctor.target.state.accumulations import mark_all, marked
from graphdoctor.target.state.attributes import SCALARS
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.state.kinds import kind_of
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.paths import StatePath
from graphdoctor.target.state.tree import Tree
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.locations import Lines, Location
from graphdoctor.values.report import Mode

_DEEPEST = 8
_FROZEN = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, MethodType, type)


class _ByName:
    """Variables by their names alone, which are the same in two objects of one make."""

    with_empty = False

    def name_of(self, key: object) -> None:
        return None

    def variable(self, name: str, holder: object) -> StatePath:
        return StatePath.of(name)


def _inside(value: object, path: StatePath) -> dict[StatePath, object]:
    """What an object holds; nothing for modules, optimizers, tensors, methods and classes."""
    if isinstance(value, _FROZEN):
        return {}
    visit = Visit(path, value)
    return {child.path: child.value for child in kind_of(value).children(visit, _ByName())}


@dataclass(frozen=True, slots=True)
class Place:
    """The way from the object to a value in it that can be set, by paths; `name` is for people."""

    way: tuple[StatePath, ...]
    name: str

    def value(self, holder: object) -> object:
        """The value at this place. Raises LookupError where this object has no such place."""
        return self._last_two(holder)[1]

    def setter(self, holder: object) -> Callable[[Any], None]:
        """A function that puts another value there."""
        owner, _ = self._last_two(holder)
        return partial(kind_of(owner).write, owner, self.way[-1])

    def _last_two(self, value: object) -> tuple[object, object]:
        before, path = value, _ROOT
        for step in self.way:
            before, value, path = value, _inside(value, path)[step], step
        return before, value


_ROOT = StatePath.of("")
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
        if not batches:
            continue
        for each in variables:
            each[name] = objects[0]
        for place in batches:
            with torch.inference_mode(False), torch.no_grad():
                values = [clone_inputs(Inputs((place.value(o),), {})).args[0] for o in objects]
            found.add(f"{name}.{place.name}", place.setter(objects[0]), values)
        for place in numbers:
            for writes, own in zip(found.writes, objects, strict=True):
                writes.append(partial(place.setter(objects[0]), place.value(own)))
    return found, variables


def _is_in(place: Place, objects: Sequence[object]) -> bool:
    """Whether each object has something of the kind there."""
    try:
        kinds = {type(place.value(each)) for each in objects}
    except LookupError:
        return False
    return len(kinds) == 1


def differing_places(first: object, second: object) -> tuple[list[Place], list[Place]]:
    """Where two of them, made for two steps, hold batches, and where numbers that differ.

    What both hold in common, such as the trainer, is the same object in both, and is not looked into.
    """
    batches: list[Place] = []
    numbers: list[Place] = []
    for way, one, other in _pairs(first, second, (), 0):
        names = [step.name for step in dict.fromkeys(way)]  # a variable has the path of its cell
        place = Place(way, ".".join(name for name in names if isinstance(name, str)))
        if is_given(one) and is_given(other):
            batches.append(place)
        elif isinstance(one, SCALARS) and type(one) is type(other) and one != other:
            numbers.append(place)
    return batches, numbers


def _pairs(
    one: object, other: object, way: tuple[StatePath, ...], depth: int
) -> Iterator[tuple[tuple[StatePath, ...], object, object]]:
    """Values that can be set, in both objects; none inside a batch."""
    if one is other or type(one) is not type(other) or depth > _DEEPEST:
        return
    path = way[-1] if way else _ROOT
    others = _inside(other, path)
    for step, value in _inside(one, path).items():
        matching = others.get(step, value)
        if value is matching:
            continue
        is_leaf = isinstance(value, (torch.Tensor, *SCALARS))
        if not isinstance(one, (partial, tuple)) and (is_leaf or is_given(value)):
            yield (*way, step), value, matching
        elif not is_leaf:
            yield from _pairs(value, matching, (*way, step), depth + 1)


@dataclass
class LoopStep(SeenStep):
    """A training step, as statements of a loop or of a function that is called for each."""

    loop: Loop = None  # type: ignore[assignment]
    follower: Follower = None  # type: ignore[assignment]
    namespace: dict[str, object] = field(default_factory=dict)
    held_by: tuple[str, ...] = ()  # variables that hang on a step before, as this one begins
    taken: TakenItems = field(default_factory=TakenItems)
    is_learned: bool = False  # from the steps that ran, which are counted
    _floats: dict[str, float] = field(default_factory=dict)
    _places: Places = field(default_factory=dict)

    @classmethod
    def learned(cls, loop: Loop) -> LoopStep:
        """The step of statements that were found by the steps that ran."""
        step = cls.of(loop)
        step.begun, step.knows_passes, step.is_learned = STEPS_TO_LEARN, False, True
        return step

    @classmethod
    def of(cls, loop: Loop, mode: Mode = "training") -> LoopStep:
        """The step of these statements."""
        name, place = _named(loop.span)
        return cls(name, place, loop.span.last_line, mode, loop=loop, follower=Follower(loop.span))

    def begin(self, frame: FrameType) -> None:
        """Note the variables with which the statements begin now."""
        if self.saved is None:
            self.namespace = frame.f_globals
            self._reach_back(frame)
        variables, values = self.loop.variables, self.values(frame)
        if self.saved is None:
            if marked(values):
                names = tuple(_holders(self.loop.span, frame))
                self.held_by = names or ("a tensor of an earlier step",)
            self.saved = SavedSteps.begin(values)
        given = {n: values[n] for n in variables.varying if n in values and is_given(values[n])}
        if len(self.saved.beginnings) == 1:
            first = self.saved.beginnings[0].variables
            both = (n for n in variables.varying if n in values and n in first)
            pairs = ((n, first[n], values[n]) for n in both if not is_plain_container(first[n]))
            self._places = {n: differing_places(a, b) for n, a, b in pairs if a is not b}
        contents = {
            n: copied_container(values[n]) for n in variables.varying
            if n not in given and is_plain_container(values.get(n))
        }  # fmt: skip
        self.saved.add(Inputs((), given), values, contents)
        self.taken.begin_pass(values)
        for name in variables.varying:
            value = values.get(name)
            is_other = isinstance(value, float) and self._floats.setdefault(name, value) != value
            if is_other or isinstance(value, np.ndarray):
                self.host_values.add(name)

    def look(self, frame: FrameType) -> None:
        """Mark the accumulations of gradients that are there: those that are still there when the next step
        begins are held. Whether they are there now says nothing, since this step may have run in part.
        """
        mark_all(self.values(frame))

    def values(self, frame: FrameType) -> dict[str, object]:
        """The variables of the step's statements, by name."""
        variables = self.loop.variables
        return frame_values(frame, (*variables.varying, *variables.carried, *variables.fixed))

    def _reach_back(self, frame: FrameType) -> None:
        """Let the step begin where what it differentiates is computed, be it without a module."""
        for _ in range(len(self.loop.span.block)):
            values = frame_values(frame, self.loop.variables.varying)
            hanging = [n for n, v in values.items() if _hangs_on_autograd(v)]
            longer = extended(self.loop.span, hanging[0]) if hanging else None
            if longer is None:
                return
            self.loop = Loop(longer, variables_of(longer), self.loop.is_autocast)
            self.follower.lengthen(longer)
            self.name, self.location = _named(longer)

    def target(self, *, iterations: int) -> Target:
        assert self.saved is not None
        beginnings = self.saved.beginnings
        variables = self.loop.variables
        given = tuple(
            n for n in variables.varying
            if all(n in b.inputs.kwargs for b in beginnings) and _is_new_each_time(n, beginnings)
        )  # fmt: skip
        self.taken.stop()
        again = self._given_again(beginnings)
        made = rebuild(
            self.loop.span,
            variables,
            {**beginnings[0].variables, **{name: each for name, (each, _) in again.items()}},
            inputs=given,
            namespace=self.namespace,
            own=frozenset(again),
        )
        writes = self.saved.writes()
        places = {n: each for n, each in self._places.items() if n not in (*given, *again)}
        # Containers that the program makes before each step, for the step to fill.
        filled = {
            n for n in beginnings[0].contents
            if n not in given and _is_new_each_time(n, beginnings) and len(beginnings) > 1
        }  # fmt: skip
        held, variables_of_each = held_batches(places, beginnings)
        for name, (iterator, items) in again.items():
            held.add(f"next({name})", iterator.give, items)
        for number, values in enumerate(variables_of_each):
            # Variables that the program binds anew before each step, and that are no tensors.
            writes[number].extend(
                partial(self._setter(made, name), values[name])
                for name in variables.varying
                if name in values and name not in {*made.inputs, *again, *filled}
            )
            contents = beginnings[number].contents
            writes[number].extend(
                partial(self._fill, made, n, contents[n]) for n in filled if n in contents
            )
            writes[number].extend(held.writes[number])
        size = self.passes_per_step
        passes = [
            Inputs((), {**{n: b.inputs.kwargs[n] for n in given}, **batches})
            for b, batches in zip(beginnings, held.batches, strict=True)
        ][: iterations * size]
        given = (*given, *held.setters)
        own = ", ".join(given) or "none"
        notes = [f"the inputs are the program's own, as it bound them before each step: {own}"]
        if size > 1:
            notes.append(f"one step is {size} passes: gradients are accumulated")
        file, first, last = self.location.file, self.location.line, self.last_line
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        return Target(
            name=self.name,
            file=file,
            entry=f"{lines} of {os.path.basename(file)}, as the program ran them",
            mode=self.mode,
            step=_run_of(self, made, writes, held),
            fresh_inputs=in_turn(_batches(given, passes, size)),
            roots=roots_of(made.step),
            notes=tuple(notes),
            is_warm=True,
            rebound=tuple(sorted(self.saved.rebound)),
            lines=Lines(file, first, last),
            held_by=self.held_by,
        )

    def _given_again(
        self, beginnings: Sequence[Beginning]
    ) -> dict[str, tuple[GivenAgain, list[tuple[object, ...]]]]:
        """The substitute for each iterator that the step calls `next()` on, and its items in each pass."""
        variables, values = self.loop.variables, beginnings[0].variables
        found = {}
        for name in (*variables.varying, *variables.carried, *variables.fixed):
            if not is_iterator(value := values.get(name)):
                continue
            if (items := self.taken.of_each(name, len(beginnings))) is not None:
                found[name] = GivenAgain(), items
            elif name not in variables.carried and not hasattr(value, "__len__"):
                raise NotRebuilt(
                    f"The step at line {self.loop.span.first_line} takes its batch from the iterator "
                    f"`{name}`, whose position cannot be put back: take the batch before the step."
                )
        return found

    def _fill(self, made: Rebuilt, name: str, contents: object) -> None:
        self._setter(made, name)(copied_container(contents))

    def _setter(self, made: Rebuilt, name: str) -> Callable[[object], None]:
        """What binds a variable of the step."""
        if name in made.cells:
            return partial(setattr, made.cells[name], "cell_contents")
        return partial(setitem, self.namespace, name)


def _named(span: Span) -> tuple[str, Location]:
    code, first, last = span.code, span.first_line, span.last_line
    lines = f"{first}" if first == last else f"{first}-{last}"
    name = f"{os.path.basename(code.co_filename)}:{lines}"
    return name, Location(code.co_filename, first, code.co_name)


def _run_of(
    step: LoopStep, made: Rebuilt, writes: list[list[Callable[[], object]]], held: HeldBatches
) -> Callable[..., object]:
    """What runs the passes of a turn, each from where the program stood then."""
    size = step.passes_per_step

    def run(turn: Turn, **inputs: Any) -> object:
        result: object = None
        stepped: list[object] = []
        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: stepped.append(optimizer))
        try:
            for index in range(size):
                for write in writes[turn.number * size + index]:
                    write()
                own = {n: v[index] if size > 1 else v for n, v in inputs.items()}
                for name, put in held.setters.items():
                    put(own.pop(name))
                result = made.step(**own)
        finally:
            hook.remove()
        if step.mode == "training" and not stepped:
            step.is_incomplete = True
        return result

    return run


def _batches(given: tuple[str, ...], passes: list[Inputs], size: int) -> list[Inputs]:
    """The inputs of each turn: of its only pass, or of each of its passes."""
    batches = []
    for turn in range(len(passes) // size):
        those = passes[turn * size : (turn + 1) * size]
        values = {
            n: those[0].kwargs[n] if size == 1 else tuple(each.kwargs[n] for each in those)
            for n in given
        }
        batches.append(Inputs((), {"turn": Turn(turn), **values}))
    return batches


def _holders(span: Span, frame: FrameType) -> Iterator[str]:
    """The variables of the step's statements that still hang on an earlier one, with their lines."""
    names = [n for each in span.statements for n in ast.walk(each) if isinstance(n, ast.Name)]
    lines = {n.id: n.lineno for n in names}
    bound = (n for n in names if isinstance(n.ctx, ast.Store))
    lines |= {n.id: n.lineno for n in sorted(bound, key=lambda node: node.lineno)}
    file = os.path.basename(span.code.co_filename)
    for name, value in frame_values(frame, tuple(lines)).items():
        if any(map(_hangs_on_autograd, Tree(value, into_objects=False).leaves("").values())):
            yield f"`{name}` ({file}:{lines[name]})"


def _hangs_on_autograd(value: object) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _is_new_each_time(name: str, beginnings: list[Any]) -> bool:
    if len(beginnings) < 2:
        return True
    first, second = (each.variables[name] for each in beginnings[:2])
    return first is not second
