"""A session and other code for its models -> its step, whose models run that code during a call only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built, Captured, Known
from graphdoctor.target import Inputs
from graphdoctor.target.frames import is_machinery
from graphdoctor.target.state.walk import Walk

CALLS = 4  # compile, warm a pool of graphs up, record them, replay them
_SLOT = "_compiled_call_impl"  # where Module.compile() keeps what a call then runs

Function = Callable[..., Any]


def _nothing() -> None:
    pass


def tops_of(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """The modules that no other module contains, by path."""
    found: dict[str, torch.nn.Module] = {}
    inside: set[int] = set()
    for path, value, _ in Walk(roots):
        if isinstance(value, torch.nn.Module) and id(value) not in inside:
            found[str(path)] = value
            inside.update(id(module) for module in value.modules() if module is not value)
    return {path: module for path, module in found.items() if id(module) not in inside}


def models_of(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """Those of them that a person would compile.

    Loss functions beside a model that has parameters are not among them.
    """
    tops = tops_of(roots)
    trained = {path: top for path, top in tops.items() if any(True for _ in top.parameters())}
    return trained or tops


class CompiledModels(Built):
    """A step whose models run other code than their own, during a call only.

    Between calls the models are as they were, so that nobody who saves, walks or restores them meets
    a compiler. `note` is what people should know about the result.
    """

    def __init__(
        self, session: Session, models: Mapping[torch.nn.Module, Function], step: Function
    ) -> None:
        self._session = session
        self._models = dict(models)
        self._step = step
        self._before_call: Callable[[], None] = _nothing
        self._undo: list[Callable[[], None]] = []
        self.in_graphs: Captured | None = None  # as far as it is known

    def before_each_call(self, tell: Callable[[], None]) -> None:
        self._before_call = tell

    def at_release(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def call(self, inputs: Inputs) -> object:
        self._before_call()
        with self._in_place():
            return self._step(*inputs.args, **inputs.kwargs)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        """Python runs in each call, so what is there now is what the call left."""
        return footprint(self._session.target.roots, inputs, outputs)

    def holds(self, known: Known) -> Captured | None:
        return self.in_graphs

    def release(self) -> None:
        self._models.clear()
        self._step = self._session.target.step
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        before = [(model, vars(model).get(_SLOT)) for model in self._models]
        try:
            for model, run in self._models.items():
                vars(model)[_SLOT] = run
            yield
        finally:
            _put_back(before)


def compiled_models(
    session: Session, compiler: Callable[[Function], Function], *, whole: bool
) -> CompiledModels:
    """The target's step with its models compiled, or, where `whole` or it has none, compiled itself.

    With its models compiled the step stays the user's: loss, backward and optimizer are in Python, as
    where a person adds one line to a script.
    """
    models = {} if whole else models_of(session.target.roots)
    step: Function = session.target.step
    compiled = {model: compiler(_callable_of(model)) for model in models.values()}
    return CompiledModels(session, compiled, step if models else compiler(step))


def _callable_of(model: torch.nn.Module) -> Function:
    """What to compile, so that hooks run too.

    Dynamo leaves out torch's own files, and looks into them from others only: `Sequential.forward`
    would run eagerly as the outermost frame.
    """
    code = getattr(getattr(model.forward, "__func__", None), "__code__", None)
    if code is not None and not is_machinery(code.co_filename):
        call: Function = model._call_impl
        return call

    def call_model(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    return call_model


def _put_back(before: Sequence[tuple[torch.nn.Module, object]]) -> None:
    for model, own in before:
        if own is None:
            vars(model).pop(_SLOT, None)
        else:
            vars(model)[_SLOT] = own


def warmed_up(session: Session, built: CompiledModels) -> None:
    """Call it, so that compilation is over; state is afterwards that of the session's start."""
    with session.start.around():
        for _ in range(CALLS):
            built.call(session.inputs(0))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
