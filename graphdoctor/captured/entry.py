"""A model on the device and its inputs -> the same model, whose calls are replays where that is safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.captured.forward_graph import GuardedGraph, Setup
from graphdoctor.captured.module import CapturedModel, is_captured, module_of
from graphdoctor.captured.plan import CapturePlan, inference_plan, training_plan
from graphdoctor.captured.readiness import unready
from graphdoctor.captured.replays import Replays
from graphdoctor.captured.study import study
from graphdoctor.captured.training import study_training
from graphdoctor.device.open import AnyDevice
from graphdoctor.device.real import WatchedDevice
from graphdoctor.graphs.guards import Modes, emulated_device
from graphdoctor.graphs.modules import wrapper_of
from graphdoctor.pipeline import analyze
from graphdoctor.target import Inputs
from graphdoctor.values.errors import GraphDoctorError, UsageError
from graphdoctor.values.report import Mode

_NO_GPU = "there is no GPU here that torch can use"


def capture(
    model: torch.nn.Module,
    *inputs: object,
    mode: Mode | None = None,
    max_graphs: int = 1,
    clone_outputs: bool = True,
    **kwargs: object,
) -> Any:
    """Give a module that is the model, and replays CUDA graphs of it where that is proved safe.

    `inputs` and `kwargs` are those of one call; the model and they are on the device already. What
    cannot be captured runs eagerly, and `explain()` of the result says why; so do calls that are not
    what was captured. `mode` "training" also captures the backward pass; None decides by the model's
    training flag. Up to `max_graphs` graphs are made, for inputs of other shapes. Without
    `clone_outputs` the next call writes over the outputs of the one before.

    Raises `UsageError` for what is no module or was captured or compiled before, and
    `UserCodeError` where the model itself fails.
    """
    _check(model, max_graphs)
    given = Inputs(inputs, kwargs)
    if not _has_device():
        return _eager(model, _plan_without_gpu(model, given))
    setup = Setup(Modes(), clones=clone_outputs)
    if reason := unready(model, given):
        return _eager(model, CapturePlan("eager", obstacles=(reason,)))

    def grow(others: Inputs) -> GuardedGraph | str:
        if found_now := unready(model, others):
            return found_now
        with _watched_device() as device:
            more = study(model, others, device, setup)
        return more.graph if more.graph is not None else "; ".join(more.obstacles)

    replays = Replays(model, context=setup.context, max_graphs=max_graphs, grow=grow)
    with _watched_device() as device:
        if (mode or _mode_of(model)) == "training":
            known, made = study_training(model, given, device, setup.context)
            plan, parts = training_plan(known, made)
            replays.training = parts
        else:
            found = study(model, given, device, setup)
            plan, parts = inference_plan(found)
            replays.parts = parts
            if found.graph is not None:
                replays.add(found.graph)
    replays.why_not = plan.obstacles[0] if plan.obstacles else replays.why_not
    return module_of(model, CapturedModel(model, plan, replays, parts))


def _mode_of(model: torch.nn.Module) -> Mode:
    """What calls like the one of capture() are for."""
    wants = any(parameter.requires_grad for parameter in model.parameters())
    return "training" if model.training and wants and torch.is_grad_enabled() else "inference"


def _check(model: object, max_graphs: int) -> None:
    if is_captured(model):
        raise UsageError(
            "The model is captured already: capture() takes the model it was made from."
        )
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"capture() takes a torch.nn.Module, and got a {type(model).__name__}: "
            "a function has no parameters to watch; give it the module that it calls."
        )
    if wrapper := wrapper_of([model]):
        raise UsageError(f"{wrapper}; capture() takes the module inside it.")
    if max_graphs < 1:
        raise UsageError(
            f"max_graphs counts graphs, of which there is at least 1; got {max_graphs}."
        )


def _eager(model: torch.nn.Module, plan: CapturePlan) -> Any:
    """The model as it is, under the same interface."""
    replays = Replays(model, context=Modes(), max_graphs=1, grow=lambda others: plan.obstacles[0])
    replays.why_not = plan.obstacles[0]
    return module_of(model, CapturedModel(model, plan, replays))


def _plan_without_gpu(model: torch.nn.Module, inputs: Inputs) -> CapturePlan:
    """Nothing is captured; the verdict is an emulated analysis's, which changes nothing."""
    try:
        report = analyze(model, *inputs.args, device="emulated", **inputs.kwargs)  # type: ignore[arg-type]
    except GraphDoctorError as error:
        return CapturePlan("eager", obstacles=(_NO_GPU, f"an emulated GPU could not tell: {error}"))
    says = f"an emulated GPU says {report.verdict}: {report.reason}"
    return CapturePlan("eager", launches=0, obstacles=(_NO_GPU, says))


def _has_device() -> bool:
    """Whether anything can be captured here."""
    return emulated_device() is not None or torch.cuda.is_available()


@contextmanager
def _watched_device() -> Iterator[AnyDevice]:
    """The device, watched for a recording: the caller's emulated one, or else the real one."""
    emulated = emulated_device()
    if emulated is not None:
        yield emulated
        return
    with WatchedDevice() as watched:
        yield watched
