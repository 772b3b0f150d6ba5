"""An eager call between two graphs, made again on the same tensors in every step."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch

from graphdoctor.graphs.split.optimizer_step import OptimizerStep
from graphdoctor.graphs.split.pending import Pending, Watch, read
from graphdoctor.source.trees import tree_of
from graphdoctor.target.frames import Place
from graphdoctor.target.state.clone import copy_values
from graphdoctor.target.state.kinds.tensors import grad_of
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.locations import Location, line_of

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
