"""The strategies with torch.compile, by mode or backend: compile, warm up, and clear what Dynamo keeps."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from graphdoctor.estimate import Regions
from graphdoctor.graphs.cause import in_words, true_cause
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.record.scopes import outermost_modules
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built, CannotBuild, Captured, Known, Strategy
from graphdoctor.target import Inputs
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.figures import count_text

CALLS = 4  # compile, warm a pool of graphs up, record them, replay them
_SLOT = "_compiled_call_impl"  # where Module.compile() keeps what a call then runs

Function = Callable[..., Any]


def _nothing() -> None:
    pass


def models_of(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """Those of them that a person would compile.

    Loss functions beside a model that has parameters are not among them.
    """
    tops = outermost_modules(roots)
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


_LOGS = ("cudagraphs_log", "perf_hint_log")  # by version of torch


def reason_against_dynamo(roots: Mapping[str, object]) -> str:
    """Why its models cannot be compiled, in one sentence; "" where it can be tried."""
    for path, model in models_of(roots).items():
        if isinstance(model, torch.jit.ScriptModule):
            return f"{path} is TorchScript already, which torch.compile does not trace"
        # Recognized by its name: importing the class takes seconds.
        if getattr(model, "_compiled_call_impl", None) is not None or (
            type(model).__name__ == "OptimizedModule"
        ):
            return f"{path} is compiled already: what eager does cannot be compared with it"
    return ""


def check_device(session: Session) -> None:
    """Raises `CannotBuild` on the emulated device, which compilers would trace in place of the model."""
    if session.device.kind == "emulated":
        raise CannotBuild("it takes a real GPU: without one, torch would compile the emulation")


def forget_compiled() -> None:
    """Drop what Dynamo compiled in this process, with its guards and the graphs behind it."""
    import torch._dynamo

    torch._dynamo.reset()
    with suppress(ImportError, AttributeError, RuntimeError):
        if torch.cuda.is_available():
            from torch._inductor.cudagraph_trees import reset_cudagraph_trees

            reset_cudagraph_trees()


def frames_compiled() -> int:
    """How many frames Dynamo has compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["frames"]["ok"])


@contextmanager
def dynamo_errors() -> Iterator[None]:
    """Turn a failure of the compiler into `CannotBuild`; errors of the step itself pass through."""
    from torch._dynamo import exc

    try:
        yield
    except exc.TorchDynamoException as error:
        # What a backend raised is the first line of neither: torch wraps it in a text of its own.
        cause = getattr(error, "inner_exception", None) or true_cause(error)
        raise CannotBuild(f"torch.compile failed: {in_words(cause).rstrip('.')}") from error


class Skips:
    """What torch left out of CUDA graphs while it compiled, which it writes to a log only."""

    def __init__(self) -> None:
        self.count = 0
        self.reasons: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        from torch._dynamo.utils import counters

        before = counters["inductor"]["cudagraph_skips"]
        with _heard(self.reasons):
            yield
        self.count = int(counters["inductor"]["cudagraph_skips"] - before)

    @property
    def note(self) -> str:
        if not self.count:
            return ""
        reason = f": {self.reasons[0]}" if self.reasons else ""
        return f"torch ran {count_text(self.count, 'graph')} without CUDA graphs{reason}"


@contextmanager
def _heard(reasons: list[str]) -> Iterator[None]:
    """Read along in the log of skipped graphs, where this torch has it and lets it through."""
    from torch._inductor import cudagraph_utils

    found = next((log for name in _LOGS if (log := getattr(cudagraph_utils, name, None))), None)
    if not isinstance(found, logging.Logger):
        yield
        return
    reader = _Reader(reasons)
    found.addHandler(reader)
    try:
        yield
    finally:
        found.removeHandler(reader)


class _Reader(logging.Handler):
    def __init__(self, reasons: list[str]) -> None:
        super().__init__()
        self._reasons = reasons

    def emit(self, record: Any) -> None:
        first_line = record.getMessage().strip().split("\n", 1)[0]
        self._reasons.append(first_line.removeprefix("skipping cudagraphs due to "))


class Compiler(Strategy):
    """torch.compile of the models in the step, in the `mode` or with the `backend` that it names.

    The models among the target's roots are compiled where they are, and the step stays the user's; a
    step that calls no model is compiled itself. To be compared with.
    """

    name: str
    title: str
    mode: str | None = None
    backend: str | None = None
    options: Mapping[str, bool] | None = None  # Inductor's
    has_graphs = False  # CUDA graphs, whose memory the next call may overwrite
    compiles = True
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return reason_against_dynamo(known.roots)

    def regions(self, known: Known) -> Regions | None:
        """Other kernels than the recorded ones run, so that nothing is predicted from those."""
        return None

    def build(self, session: Session, known: Known) -> Built:
        return self.compiled(session)

    def compiled(self, session: Session) -> CompiledModels:
        """Compile, and call until nothing is compiled any more. Raises `CannotBuild`."""
        check_device(session)
        forget_compiled()
        built = self._called(session, whole=False)
        if built is None:
            built = self._called(session, whole=True)
        if built is None:
            forget_compiled()
            raise CannotBuild("torch.compile found nothing in the step to compile")
        return built

    def code(self, known: Known) -> str:
        shown = "".join(f", {name}={_shown(value)}" for name, value in self._options().items())
        compiled = list(models_of(known.roots)) or ["step"]
        lines = [f"{path} = torch.compile({path}{shown})" for path in compiled]
        return "\n".join([*lines, "# call it as before; the first calls compile"]) + "\n"

    def _called(self, session: Session, *, whole: bool) -> CompiledModels | None:
        """Built and warmed up; None where no call of it reached the compiler."""
        built = compiled_models(session, self._compile, whole=whole)
        built.at_release(forget_compiled)
        if self.has_graphs:
            built.before_each_call(torch.compiler.cudagraph_mark_step_begin)
        before, skips = frames_compiled(), Skips()
        try:
            with dynamo_errors(), skips.noted():
                warmed_up(session, built)
        except BaseException:
            built.release()
            raise
        if frames_compiled() == before:
            built.release()
            return None
        built.note = skips.note
        return built

    def _options(self) -> dict[str, Any]:
        chosen = {"mode": self.mode, "backend": self.backend, "options": self.options}
        return {name: value for name, value in chosen.items() if value is not None}

    def _compile(self, function: Function) -> Function:
        compiled: Function = torch.compile(function, **self._options())
        return compiled


def _shown(value: str | Mapping[str, bool]) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return "{" + ", ".join(f"{json.dumps(name)}: {flag}" for name, flag in value.items()) + "}"


class Compile(Compiler):
    """Inductor's kernels, launched by Python: fewer of them, and no CUDA graph."""

    name = "compile"
    title = "torch.compile"


class ReduceOverhead(Compiler):
    """Inductor's kernels inside CUDA graphs that torch records and checks."""

    name = "reduce-overhead"
    title = 'torch.compile(mode="reduce-overhead")'
    mode = "reduce-overhead"
    has_graphs = True


class MaxAutotune(Compiler):
    """The fastest of several kernels for each matrix product, inside CUDA graphs; takes minutes."""

    name = "max-autotune"
    title = 'torch.compile(mode="max-autotune")'
    mode = "max-autotune"
    has_graphs = True


class CudaGraphs(Compiler):
    """Eager's own kernels, in the CUDA graphs of torch.compile: the nearest to ours of all."""

    name = "cudagraphs"
    title = 'torch.compile(backend="cudagraphs")'
    backend = "cudagraphs"
    has_graphs = True
