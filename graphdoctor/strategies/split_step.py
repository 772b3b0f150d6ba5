"""A training step -> graphs of its forward, backward and optimizer, and real calls for the glue between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.estimate import Calls, Regions
from graphdoctor.graphs.capture import device_usable_after_failure
from graphdoctor.graphs.cause import refusal_of
from graphdoctor.graphs.split.breakable import BreakableCapture, trained_tensors
from graphdoctor.graphs.split.built_split import BuiltSplit, Made, holds_pending
from graphdoctor.graphs.split.glue import glue_objects
from graphdoctor.graphs.split.pending import StepRefused
from graphdoctor.graphs.split.python_changes import PythonChanges
from graphdoctor.graphs.split.stand_ins import Glue
from graphdoctor.graphs.whole_step import detached, fresh_inputs, warm_up
from graphdoctor.record.session import WARM_UPS, Session
from graphdoctor.strategies.split_plan import (
    code_for,
    first_outside,
    rates_change,
    reason_against,
    regions_of,
)
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.target import Snapshot, Target
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.locations import in_place, with_place


class BuiltSplitStep(BuiltSplit, Built):
    """The graphs of one split step."""


class SplitStep(Strategy):
    """A graph that ends at each call of the glue, and the next one behind it."""

    name = "split-step"
    title = "graphs between the calls of optimizer, schedule and scaler, which are made for real"

    def reason_against(self, known: Known) -> str:
        return reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        return regions_of(known)

    def calls(self, known: Known) -> Calls:
        return Calls(glue=len(glue_objects(known.roots)))

    def build(self, session: Session, known: Known) -> BuiltSplitStep:
        """Warm up, then run one step that is captured piece by piece."""
        return split(session, known)

    def code(self, known: Known) -> str:
        return code_for(known)


def split(
    session: Session, known: Known, step: Callable[..., object] | None = None
) -> BuiltSplitStep:
    """The session's step, or `step` in its place, split. Raises `CannotBuild`.

    State is afterwards what it was before.
    """
    target = session.target if step is None else replace(session.target, step=step)
    with session.start.around():
        side: Any = torch.cuda.Stream()
        if session.device.kind != "emulated":
            warm_up(target, side, WARM_UPS)
            session.start.restore()
        return _Attempt(target, session.start, known, side).run()


class _Attempt:
    """One capture of one step."""

    def __init__(self, target: Target, start: Snapshot, known: Known, side: Any) -> None:
        self._target = target
        self._start = start
        self._known = known
        roots = self._target.roots
        self._objects = glue_objects(roots)
        trained = trained_tensors(named_tensors(roots))
        self._capture = BreakableCapture(side, PythonChanges(roots), trained)

    def run(self) -> BuiltSplitStep:
        static = fresh_inputs(self._target)
        try:
            with device_usable_after_failure(self._capture):
                outputs = self._outputs_of(static.args, static.kwargs)
        except StepRefused as refused:
            raise CannotBuild(str(refused)) from refused
        except CannotBuild:
            raise
        except BaseException as error:
            found = refusal_of(error)
            reason = self._capture.watch.reason or found.reason
            raise CannotBuild(with_place(reason, found.location)) from error
        made = Made(static, detached(outputs), self._capture.gradients_at_end(), self._start)
        return BuiltSplitStep(self._target.roots, self._capture, made)

    def _outputs_of(self, args: Any, kwargs: Any) -> object:
        capture = self._capture
        glue = Glue(capture, self._objects, rates_change=rates_change(self._known))
        try:
            with Patches() as patches:
                glue.stand_in(patches)
                capture.begin()
                outputs = self._target.step(*args, **kwargs)
                capture.end()
            self._check()
        finally:
            capture.watch.is_armed = False
        return outputs

    def _check(self) -> None:
        """Raises `CannotBuild` where the pieces could not stand for the step."""
        capture = self._capture
        if capture.watch.reason:
            raise CannotBuild(capture.watch.reason)
        if not capture.places:
            raise CannotBuild(
                "the step makes no call that has to run again in each step, "
                "so there is nothing to split it at"
            )
        if not capture.graphs:
            raise CannotBuild("the step runs nothing on the GPU, so there is nothing to capture")
        finding = first_outside(self._known.findings, capture.places)
        if finding is not None:
            raise CannotBuild(
                f"{finding.rule} {finding.name}{in_place(finding.location)} stays inside a graph: "
                "it is none of the calls that run again in each step"
            )
        capture.watch.is_armed = False
        for path in _kept_values(self._target.roots):
            raise CannotBuild(
                f"the step keeps a value that it read from the device in {path}, "
                "and Python that keeps it is not run again"
            )


def _kept_values(roots: Any) -> Iterator[str]:
    return (visit.path for visit in Walk(roots) if holds_pending(visit.value))
