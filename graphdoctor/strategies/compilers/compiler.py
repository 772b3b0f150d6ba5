"""The strategies with torch.compile, by mode or backend: how they compile, warm up and clean up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from graphdoctor.estimate import Regions
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.dynamo import (
    Skips,
    check_device,
    dynamo_errors,
    forget_compiled,
    frames_compiled,
    reason_against_dynamo,
)
from graphdoctor.strategies.compilers.models import (
    CompiledModels,
    Function,
    compiled_models,
    models_of,
    warmed_up,
)
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy


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
