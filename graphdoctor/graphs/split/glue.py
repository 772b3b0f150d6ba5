"""An eager call between two graphs, made again in every step, and what it needs: numbers not read yet, optimizers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, cast

import torch

from graphdoctor.source.trees import tree_of
from graphdoctor.target.frames import Place
from graphdoctor.target.state.clone import copy_values
from graphdoctor.target.state.kinds.tensors import grad_of
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.locations import Location, line_of


class StepRefused(BaseException):
    """The step does something that its pieces cannot repeat; the text is the reason.

    No `Exception`: the step's own handlers must not take it for an error of the step.
    """


class Watch:
    """Whether stand-ins refuse to be looked at, and the first reason why the step was refused."""

    def __init__(self) -> None:
        self.is_armed = True
        self.reason = ""

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Let graphdoctor itself look at state that may hold stand-ins."""
        before, self.is_armed = self.is_armed, False
        try:
            yield
        finally:
            self.is_armed = before

    def refuse(self, reason: str) -> NoReturn:
        self.reason = self.reason or reason
        raise StepRefused(reason)


class Pending:
    """Stands for a value that each call reads anew. `value` is the last one that was read.

    The step may return it, or give it to another call that is made again. Python that looks at it
    would not be run again, so looking ends the capture.
    """

    __slots__ = ("_reason", "_watch", "value")

    def __init__(self, watch: Watch, reason: str) -> None:
        self._watch = watch
        self._reason = reason
        self.value: object = None

    # isinstance() reads it if type() is not enough.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        if self._watch.is_armed:
            self._watch.refuse(self._reason)
        return Pending


def _refusing(name: str) -> Callable[..., object]:
    inherited = getattr(object, name, None)

    def look(self: Pending, *args: object) -> object:
        if self._watch.is_armed:
            self._watch.refuse(self._reason)
        if inherited is None:
            raise TypeError(f"a pending value has no {name}")
        return inherited(self, *args)

    return look


_UNARY = "bool float int index complex neg pos abs invert trunc floor ceil round hash repr str len"
_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHER = "lt le eq ne gt ge format iter getitem contains call"
for _special in (
    *_UNARY.split(),
    *_BINARY.split(),
    *(f"r{each}" for each in _BINARY.split()),
    *_OTHER.split(),
):
    setattr(Pending, f"__{_special}__", _refusing(f"__{_special}__"))


def read(value: object) -> object:
    """The value of a stand-in, or the value itself; also inside a list or a tuple."""
    kind = type(value)
    if kind is Pending:
        return cast("Pending", value).value
    if kind is list:
        return [read(item) for item in cast("list[object]", value)]
    if kind is tuple:
        return tuple(read(item) for item in cast("tuple[object, ...]", value))
    return value


def why_not_captured(optimizer: torch.optim.Optimizer) -> str:
    """Why its step stays eager, in a few words; "" where a graph can stand for it.

    Only torch's own optimizers, whose Python does the same in each step as long as their state is
    on the device and their numbers stay as they are (`Frozen` looks at those before each replay).
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return "its class is not one of torch's"
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        return "it is not capturable"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable"
    if any(_hooks_of(optimizer)):
        return "it has hooks"
    if not all(
        value is None or (isinstance(value, torch.Tensor) and value.is_cuda)
        for value in _state_of(optimizer)
    ):
        return "it keeps state on the host"
    return ""


def has_number_as_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scheduler has to change a Python number, which a graph keeps as it was."""
    return any(not isinstance(group.get("lr"), torch.Tensor) for group in optimizer.param_groups)


def _hooks_of(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        yield getattr(optimizer, name, None)
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        yield getattr(sys.modules["torch.optim.optimizer"], name, None)


def _state_of(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """The state of each parameter, and the options that are tensors."""
    for state in optimizer.state.values():
        yield from state.values()
    for group in optimizer.param_groups:
        yield from (value for value in group.values() if isinstance(value, torch.Tensor))


class Frozen:
    """The options of an optimizer that its graph keeps as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._options = [
            (group, name, value)
            for group in optimizer.param_groups
            for name, value in group.items()
            if name not in ("params", "initial_lr")
        ]

    def still_hold(self) -> bool:
        """Numbers must be equal; a tensor must be the same one, whatever its value is now."""
        return all(
            (found := group.get(name)) is value
            or (
                not isinstance(value, torch.Tensor)
                and not isinstance(found, torch.Tensor)
                and bool(found == value)
            )
            for group, name, value in self._options
        )


class OptimizerStep:
    """An optimizer's step: a replay where there is a graph that still holds, else the step itself."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[..., object]) -> None:
        self.optimizer = optimizer
        self.graph: Any = None
        self._step = step
        self._frozen: Frozen | None = None

    def take(self, graph: Any) -> None:
        """Replay this graph from now on; it was captured with the optimizer's options of now."""
        self.graph = graph
        self._frozen = Frozen(self.optimizer)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._frozen is not None and not args and not kwargs and self._frozen.still_hold():
            self.graph.replay()
            return None
        return self._step(*args, **kwargs)


_GLUE = frozenset({"step", "unscale_", "update", "update_parameters"})
_READING = frozenset({"item", "tolist"})
_CLIPPING = "clip_grad_norm_"
ERROR_IF_NONFINITE = 3  # its place among clip_grad_norm_'s arguments


class Gradients:
    """Which gradient each tensor has at one point of the step.

    `zero_grad` takes gradients away and backward makes new ones, both in Python, which is not run
    again: the tensors that the graphs fill have to be put back where the next call looks for them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._pairs = [(tensor, grad_of(tensor)) for tensor in tensors]

    def differ_from(self, earlier: Gradients) -> bool:
        """Whether one of these tensors has another gradient than earlier, or was not looked at."""
        before = {id(tensor): grad for tensor, grad in earlier._pairs}
        return any(before.get(id(tensor), tensor) is not grad for tensor, grad in self._pairs)

    def put_back(self) -> None:
        for tensor, grad in self._pairs:
            if tensor.grad is not grad:
                tensor.grad = grad

    def forget(self) -> None:
        """Hold no gradient any more."""
        self._pairs.clear()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The modes of torch that a call was made in."""

    grad_enabled: bool
    autocast: torch.dtype | None

    @staticmethod
    def now() -> Surroundings:
        autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return Surroundings(torch.is_grad_enabled(), autocast)

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.set_grad_enabled(self.grad_enabled), self._autocast():
            yield

    def _autocast(self) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast("cuda", dtype=self.autocast)


@dataclass(frozen=True, slots=True)
class Call:
    """What was called, as the user wrote it ("scaler.step()"), with what, and where."""

    name: str
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    place: Place

    def again(self) -> object:
        kwargs = {name: read(value) for name, value in self.kwargs.items()}
        return self.function(*map(read, self.args), **kwargs)


class GlueCall:
    """A call that every step makes for real, between two replays.

    `gradients` are those that it finds; None where the call before it leaves them as they must be.
    """

    def __init__(self, call: Call, gradients: Gradients | None, watch: Watch) -> None:
        self.call = call
        self.steps: list[OptimizerStep] = []  # graphs of optimizers that this call steps
        self._gradients = gradients
        self._surroundings = Surroundings.now()
        self._watch = watch
        self._result: object = None

    def first(self) -> object:
        """Make it while capturing; gives what the step may go on with."""
        self._result = self._kept(self.call.again())
        return self._result

    def run(self) -> None:
        """Make it again; a tensor that it gives takes the place of the first one."""
        if self._gradients is not None:
            self._gradients.put_back()
        with self._surroundings.again(), self._replayed_steps():
            result = self.call.again()
        if type(self._result) is Pending:
            self._result.value = result
        elif isinstance(self._result, torch.Tensor) and result is not self._result:
            with torch.no_grad():
                copy_values(self._result, result)  # type: ignore[arg-type]

    def _kept(self, result: object) -> object:
        if result is None or (isinstance(result, torch.Tensor) and result.is_cuda):
            return result
        where = line_of(self.call.place.location)
        pending = Pending(
            self._watch,
            f"{where} reads what {self.call.name} gives on the host, and what follows depends on it:"
            " keep it on the device, or return it and look at it outside the step",
        )
        pending.value = result
        return pending

    @contextmanager
    def _replayed_steps(self) -> Iterator[None]:
        """`scaler.step(optimizer)` calls `optimizer.step()`, or skips it."""
        if not self.steps:
            yield
            return
        own = [vars(step.optimizer) for step in self.steps]
        before = [attributes.get("step") for attributes in own]
        for attributes, step in zip(own, self.steps, strict=True):
            attributes["step"] = step
        try:
            yield
        finally:
            for attributes, value in zip(own, before, strict=True):
                attributes["step"] = value
                if value is None:
                    del attributes["step"]


# Whose methods are the glue, besides an optimizer's step.
METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.amp.GradScaler, ("unscale_", "step", "update")),
    (torch.optim.lr_scheduler.LRScheduler, ("step",)),
    (torch.optim.swa_utils.AveragedModel, ("update_parameters",)),  # it reads its count
)


def glue_objects(roots: Mapping[str, object]) -> dict[str, object]:
    """The optimizers, schedules, gradient scalers and averages that the roots reach, by path."""
    kinds = (torch.optim.Optimizer, *(kind for kind, _ in METHODS))
    return {str(visit.path): visit.value for visit in Walk(roots) if isinstance(visit.value, kinds)}


def has_glue_call(place: Location) -> bool:
    """Whether an optimizer, schedule or scaler may be called here, or clipping that reads the norm."""
    return any(_is_glue(call) for call in _calls_at(place.file, place.line))


def has_reading_call(place: Location) -> bool:
    """Whether a tensor's value is read here by a method."""
    return any(_name(call) in _READING for call in _calls_at(place.file, place.line))


def _is_glue(call: ast.Call) -> bool:
    name = _name(call)
    if name == _CLIPPING:
        named = any(keyword.arg == "error_if_nonfinite" for keyword in call.keywords)
        return named or len(call.args) > ERROR_IF_NONFINITE
    return name in _GLUE and isinstance(call.func, ast.Attribute)


def _name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@lru_cache(maxsize=1024)
def _calls_at(file: str, line: int) -> tuple[ast.Call, ...]:
    """The calls whose text covers a line."""
    return tuple(
        call for call in _calls_in(file) if call.lineno <= line <= (call.end_lineno or call.lineno)
    )


@lru_cache(maxsize=64)
def _calls_in(file: str) -> tuple[ast.Call, ...]:
    tree = tree_of(file)
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree else ()
