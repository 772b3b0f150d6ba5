"""Runs a step with its models in TorchScript, scripted or traced, also as one CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.estimate import Regions
from graphdoctor.graphs.cause import in_words
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.compiler import CompiledModels, Function, models_of, warmed_up
from graphdoctor.strategies.compilers.in_graph import GraphOfModels, whole_graph_of
from graphdoctor.strategies.strategy import CannotBuild, Known, Strategy
from graphdoctor.strategies.whole import Whole
from graphdoctor.target import Inputs


def scripted_step(session: Session) -> CompiledModels:
    """Script the models that the step calls, or else the step itself, and warm them up.

    Raises `CannotBuild`, with the scripting's error as its cause, where tracing fails as well.
    """
    notes: list[str] = []
    models = models_of(session.target.roots)
    calls = _calls_of(session, list(models.values()))
    with session.start.around(), _apart():
        scripted = {
            model: _scripted(model, path, calls[model], notes)
            for path, model in models.items()
            if model in calls
        }
        step: Function = session.target.step
        if not scripted:
            step = _scripted(step, "step", session.inputs(0), notes)
    built = CompiledModels(session, scripted, step)
    built.note = "; ".join(notes)
    _warm_up(session, built)
    return built


def _warm_up(session: Session, built: CompiledModels) -> None:
    """TorchScript optimises in its first calls; what it cannot run shows there."""
    try:
        warmed_up(session, built)
    except torch.jit.Error as error:
        built.release()
        raise CannotBuild(f"TorchScript failed: {_last_line(error)}") from error
    except BaseException:
        built.release()
        raise


def _calls_of(session: Session, models: list[torch.nn.Module]) -> dict[torch.nn.Module, Inputs]:
    """What each model is called with first in one step."""
    seen: dict[torch.nn.Module, Inputs] = {}

    def noting(model: torch.nn.Module) -> Function:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(model, Inputs(args, kwargs))
            return model._call_impl(*args, **kwargs)

        return run

    step: Function = session.target.step
    watched = CompiledModels(session, {model: noting(model) for model in models}, step)
    session.start.restore()
    watched.call(session.inputs(0))
    return seen


def _scripted(subject: Any, path: str, call: Inputs, notes: list[str]) -> Function:
    if isinstance(subject, torch.jit.ScriptModule):
        notes.append(f"{path} is TorchScript already")
        return subject.__call__
    try:
        scripted: Function = torch.jit.script(subject)
    except Exception as error:
        scripting_error = error
    else:
        return scripted
    traced = _traced(subject, path, call, scripting_error)
    notes.append(f"{path} is traced, because it cannot be scripted ({_said(scripting_error)})")
    return traced


def _traced(subject: Any, path: str, call: Inputs, scripting_error: Exception) -> Function:
    """Traced on one call of it. Checked on it again, unless it draws other numbers each time."""
    # The emulated device stands in for tracing, and gives the function back.
    checks = not getattr(subject, "training", False)
    try:
        traced: Function = torch.jit.trace(
            subject,
            example_inputs=None if call.kwargs else tuple(call.args),
            example_kwarg_inputs=_by_name(subject, call) if call.kwargs else None,
            check_trace=checks,
            strict=False,
        )
    except Exception as error:
        raise CannotBuild(
            f"{path} can be neither scripted ({_said(scripting_error)}) nor traced ({_said(error)})"
        ) from scripting_error
    if traced is subject:
        raise CannotBuild(
            f"{path} cannot be scripted ({_said(scripting_error)}), and it takes a real GPU to trace it"
        ) from scripting_error
    return traced


def _by_name(subject: Any, call: Inputs) -> dict[str, object]:
    """All arguments by name: tracing takes them by place or by name, not both."""
    import inspect

    forward: Callable[..., Any] = getattr(subject, "forward", subject)
    return dict(inspect.signature(forward).bind(*call.args, **call.kwargs).arguments)


@contextmanager
def _apart() -> Iterator[None]:
    """Script without warnings that it is old, and without a trace of a failure.

    torch remembers the classes that it has begun to translate: after a failure it refuses them ever
    after, the user's own attempts too. So it gets a memory of its own here.
    """
    from torch.jit import _recursive

    with warnings.catch_warnings(), Patches() as patches, _overrides_known():
        warnings.simplefilter("ignore")
        patches.set(_recursive, "concrete_type_store", _recursive.ConcreteTypeStore())
        yield


@contextmanager
def _overrides_known() -> Iterator[None]:
    """Let TorchScript know the emulated device's stand-ins for torch's checks of overrides."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    stand_ins = [getattr(torch.nn.functional, name, None) for name in names]
    added = [id(check) for check in stand_ins if check is not None and id(check) not in table]
    table.update(dict.fromkeys(added, "aten::has_torch_function"))
    try:
        yield
    finally:
        for key in added:
            del table[key]


def _said(error: Exception) -> str:
    """What TorchScript says first, which it follows with pages of code."""
    return _lines(error)[0].rstrip(":.")


def _last_line(error: Exception) -> str:
    return _lines(error)[-1]


def _lines(error: Exception) -> list[str]:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines or [in_words(error)]


class Script(Strategy):
    """TorchScript runs the model without Python, and fuses what it can on a GPU. To compare with."""

    name = "script"
    title = "TorchScript"
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return ""

    def regions(self, known: Known) -> Regions | None:
        """It saves Python, and no launch: there are no graphs to predict from."""
        return None

    def build(self, session: Session, known: Known) -> CompiledModels:
        """Scripted, or traced on a call of the step where it cannot be. `note` says which."""
        return scripted_step(session)

    def code(self, known: Known) -> str:
        return script_lines(known)


def script_lines(known: Known) -> str:
    """What a person pastes; it falls back to nothing: tracing takes example inputs of theirs."""
    paths = list(models_of(known.roots)) or ["step"]
    return "".join(f"{path} = torch.jit.script({path})\n" for path in paths)


class ScriptGraph(Strategy):
    """What TorchScript fuses, without launches between: to compare with, as published figures do."""

    name = "script-graph"
    title = "TorchScript in one CUDA graph"
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return Whole().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        """Other kernels than the recorded ones may run, so that nothing is predicted from those."""
        return None

    def build(self, session: Session, known: Known) -> GraphOfModels:
        """Script and warm up, then capture the whole step."""
        return whole_graph_of(session, scripted_step(session))

    def code(self, known: Known) -> str:
        return script_lines(known) + "\n" + Whole().code(known)
