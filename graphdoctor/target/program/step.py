"""A kind of step that a program repeats: how often, how long, and its own beginnings as a target."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import FrameType
from typing import Any

import torch

from graphdoctor.target.program.bindings import called_module
from graphdoctor.target.program.events import At, Heard
from graphdoctor.target.program.held_batches import HeldBatches, held_batches
from graphdoctor.target.program.kept import Kept, Turn, in_turn, is_given
from graphdoctor.target.program.loops import Follower, Loop
from graphdoctor.target.program.rebuild import (
    NotRebuilt,
    Rebuilt,
    frame_values,
    rebuild,
    variables_of,
)
from graphdoctor.target.program.statements import Span, extended
from graphdoctor.target.roots import roots_among, roots_of
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.program import CalledModule
from graphdoctor.values.report import Location, Mode

_MOST_PERIODS = 64


@dataclass
class SeenStep:
    """A kind of step. `begun` counts; `wall_s` is the host's time in it, without graphdoctor's own."""

    name: str
    location: Location
    last_line: int
    mode: Mode
    begun: int = 0
    wall_s: float = 0.0
    entered_at: float | None = None
    kept: Kept | None = None
    is_done: bool = False
    reason: str = ""
    outcome: Any = None  # what the diagnosis gave
    waits: Counter[tuple[Location | None, str]] = field(default_factory=Counter)
    gaps: int = 0  # times that the program was watched from one such step to the next
    is_recorded: bool = False  # the step that runs now, or the last one
    plain_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_PERIODS))
    recorded_s: list[float] = field(default_factory=list)
    _since_s: float | None = None
    modules: dict[int, CalledModule] = field(default_factory=dict)  # by identity
    caller: Location | None = None

    def begins(self, now_s: float) -> None:
        """One more, at a time of the program's own clock, which stands still during diagnoses."""
        if self._since_s is not None:
            periods = self.recorded_s if self.is_recorded else self.plain_s
            periods.append(now_s - self._since_s)
        self.begun += 1
        self._since_s, self.is_recorded = now_s, False

    @property
    def slowdown(self) -> float | None:
        """How many times as long as the others the recorded ones took, from one beginning to the next."""
        if not self.plain_s or not self.recorded_s:
            return None
        return median(self.recorded_s) / max(median(self.plain_s), 1e-9)

    def note_call(
        self, module: torch.nn.Module, places: Sequence[At], *, is_compiled: bool
    ) -> None:
        """The step calls this module from outside any other."""
        if self.caller is None and places:
            own = next((at for at in places if is_user_file(at.code.co_filename)), places[0])
            self.caller = Location(own.code.co_filename, own.line, own.code.co_name)
        if id(module) not in self.modules and any(True for _ in module.parameters()):
            self.modules[id(module)] = called_module(module, places, is_compiled=is_compiled)

    def leave(self) -> None:
        """The step has ended."""
        if self.kept is not None and not self.is_done:
            self.kept.leave()

    @property
    def beginnings(self) -> int:
        return len(self.kept.beginnings) if self.kept is not None else 0


@dataclass
class LoopStep(SeenStep):
    """A training step, as statements of a loop or of a function that is called for each."""

    loop: Loop = None  # type: ignore[assignment]
    follower: Follower = None  # type: ignore[assignment]
    namespace: dict[str, object] = field(default_factory=dict)
    passes_per_step: int = 1
    is_incomplete: bool = False  # it was run again, and no optimizer stepped

    @classmethod
    def of(cls, loop: Loop, mode: Mode = "training") -> LoopStep:
        """The step of these statements."""
        name, place = _named(loop.span)
        return cls(name, place, loop.span.last_line, mode, loop=loop, follower=Follower(loop.span))

    def begin(self, frame: FrameType) -> None:
        """Note the variables with which the statements begin now."""
        if self.kept is None:
            self.namespace = frame.f_globals
            self._reach_back(frame)
        variables = self.loop.variables
        names = (*variables.varying, *variables.carried, *variables.fixed)
        values = frame_values(frame, names)
        if self.kept is None:
            self.kept = Kept.begin(values)
        given = {n: values[n] for n in variables.varying if n in values and is_given(values[n])}
        self.kept.add(Inputs((), given), values)

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
        """The step, and the program's own batches in their order. Raises NotRebuilt."""
        assert self.kept is not None
        beginnings = self.kept.beginnings
        variables = self.loop.variables
        given = tuple(
            n for n in variables.varying
            if all(n in b.inputs.kwargs for b in beginnings) and _is_new_each_time(n, beginnings)
        )  # fmt: skip
        made = rebuild(
            self.loop.span,
            variables,
            beginnings[0].variables,
            inputs=given,
            namespace=self.namespace,
        )
        self._check_iterators(beginnings[0].variables)
        writes = [*map(_as_write, self.kept.writes())]
        held, variables_of_each = held_batches(self.loop.variables.varying, given, beginnings)
        for number, values in enumerate(variables_of_each):
            writes[number].extend(self._rebinds(made, values))
            writes[number].extend(held.writes[number])
        return _target(self, made, given, writes, held, iterations)

    def _check_iterators(self, values: Mapping[str, object]) -> None:
        for name in (*self.loop.variables.varying, *self.loop.variables.fixed):
            if hasattr(value := values.get(name), "__next__") and not hasattr(value, "__len__"):
                raise NotRebuilt(
                    f"The step at line {self.loop.span.first_line} takes its batch from the iterator "
                    f"`{name}`, whose position cannot be put back: take the batch before the step."
                )

    def _rebinds(self, made: Rebuilt, values: Mapping[str, object]) -> list[Callable[[], None]]:
        """Variables that the program binds anew before each step, and that are no tensors."""
        found: list[Callable[[], None]] = []
        for name in self.loop.variables.varying:
            if name in made.inputs or name not in values:
                continue
            if name in made.cells:
                found.append(_setting_cell(made.cells[name], values[name]))
            else:
                found.append(_setting_name(self.namespace, name, values[name]))
        return found


def _named(span: Span) -> tuple[str, Location]:
    code, first, last = span.code, span.first_line, span.last_line
    lines = f"{first}" if first == last else f"{first}-{last}"
    name = f"{os.path.basename(code.co_filename)}:{lines}"
    return name, Location(code.co_filename, first, code.co_name)


def _target(
    step: LoopStep, made: Rebuilt, given: tuple[str, ...], writes: list[list[Callable[[], None]]],
    held: HeldBatches, iterations: int,
) -> Target:  # fmt: skip
    assert step.kept is not None
    size = step.passes_per_step
    passes = [
        Inputs((), {**{n: b.inputs.kwargs[n] for n in given}, **batches})
        for b, batches in zip(step.kept.beginnings, held.batches, strict=True)
    ][: iterations * size]
    given = (*given, *held.setters)

    def run(turn: Turn, **inputs: Any) -> object:
        result: object = None
        before = Heard.optimizer_steps
        for index in range(size):
            for write in writes[turn.number * size + index]:
                write()
            own = {n: v[index] if size > 1 else v for n, v in inputs.items()}
            for name, put in held.setters.items():
                put(own.pop(name))
            result = made.step(**own)
        if step.mode == "training" and Heard.optimizer_steps == before:
            step.is_incomplete = True
        return result

    batches = []
    for turn in range(len(passes) // size):
        those = passes[turn * size : (turn + 1) * size]
        values = {
            n: those[0].kwargs[n] if size == 1 else tuple(each.kwargs[n] for each in those)
            for n in given
        }
        batches.append(Inputs((), {"turn": Turn(turn), **values}))
    file = os.path.basename(step.location.file)
    return Target(
        name=step.name,
        file=step.location.file,
        entry=f"{_lines(step)} of {file}, as the program ran them",
        mode=step.mode,
        step=run,
        fresh_inputs=in_turn(batches),
        roots=roots_of(made.step),
        notes=_notes(step, given),
        is_warm=True,
        rebound=tuple(sorted(step.kept.rebound)),
    )


def _lines(step: SeenStep) -> str:
    first, last = step.location.line, step.last_line
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _notes(step: LoopStep, given: tuple[str, ...]) -> tuple[str, ...]:
    words = ", ".join(given) or "none"
    batches = f"the inputs are the program's own, as it bound them before each step: {words}"
    if step.passes_per_step == 1:
        return (batches,)
    return (batches, f"one step is {step.passes_per_step} passes: gradients are accumulated")


def _as_write(
    numbers: list[tuple[dict[object, object], object, object]],
) -> list[Callable[[], None]]:
    return [_setting_name(held, key, value) for held, key, value in numbers]


def _setting_name(held: Any, key: Any, value: object) -> Callable[[], None]:
    def write() -> None:
        held[key] = value

    return write


def _setting_cell(cell: Any, value: object) -> Callable[[], None]:
    def write() -> None:
        cell.cell_contents = value

    return write


def _hangs_on_autograd(value: object) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _is_new_each_time(name: str, beginnings: list[Any]) -> bool:
    if len(beginnings) < 2:
        return True
    first, second = (each.variables[name] for each in beginnings[:2])
    return first is not second


@dataclass
class CallStep(SeenStep):
    """Calls of one module from one line, outside any other module and any training step."""

    module: torch.nn.Module = None  # type: ignore[assignment]

    @classmethod
    def of(cls, module: torch.nn.Module, place: Location) -> CallStep:
        name = f"{type(module).__name__} at {os.path.basename(place.file)}:{place.line}"
        return cls(name, place, place.line, "inference", module=module)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what the module is called with now."""
        inputs = Inputs(args, kwargs)
        if self.kept is None:
            held = roots_among(inputs, self.module.forward)
            self.kept = Kept.begin({"model": self.module, **held})
        self.kept.add(inputs, {})

    def target(self, *, iterations: int) -> Target:
        """The call under the modes that are on now, with the program's own inputs in their order."""
        assert self.kept is not None
        batches = [each.inputs for each in self.kept.beginnings[:iterations]]
        writes = [*map(_as_write, self.kept.writes())]
        is_inference, module = torch.is_inference_mode_enabled(), self.module
        if any(writes):
            batches = [Inputs((Turn(i), *b.args), b.kwargs) for i, b in enumerate(batches)]

        def run(*args: Any, **kwargs: Any) -> object:
            if args and isinstance(args[0], Turn):
                for write in writes[args[0].number]:
                    write()
                args = args[1:]
            with torch.inference_mode(is_inference):
                return module(*args, **kwargs)

        file = os.path.basename(self.location.file)
        return Target(
            name=self.name,
            file=self.location.file,
            entry=f"the call in line {self.location.line} of {file}, as the program made it",
            mode="inference",
            step=run,
            fresh_inputs=in_turn(batches),
            roots=self.kept.roots,
            notes=("the inputs are the program's own calls, in their order",),
            is_warm=True,
            rebound=tuple(sorted(self.kept.rebound)),
        )
