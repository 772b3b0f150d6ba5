"""Dynamo's own state -> cleared around a strategy, its failures as sentences, and the graphs it left out, counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from graphdoctor.graphs.cause import in_words, true_cause
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.models import models_of
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.values.figures import count_text

_LOGS = ("cudagraphs_log", "perf_hint_log")  # by version of torch


def reason_against_dynamo(roots: Mapping[str, object]) -> str:
    """Why its models cannot be compiled, in one sentence; "" where it can be tried."""
    for path, model in models_of(roots).items():
        if isinstance(model, torch.jit.ScriptModule):
            return f"{path} is TorchScript already, which torch.compile does not trace"
        # Told by its name: importing the class takes seconds.
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
    """What torch left out of CUDA graphs while it compiled, which it tells in a log only."""

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
