"""Captures a model on the device for given inputs, so that its calls are replays where that is safe."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphdoctor.captured.forward_graph import GuardedGraph, Setup
from graphdoctor.captured.growth import OneEach
from graphdoctor.captured.module import (
    CapturedModel,
    answer_with,
    become,
    is_captured,
    module_of,
)
from graphdoctor.captured.plan import CapturePlan, inference_plan, training_plan
from graphdoctor.captured.replays import Replays
from graphdoctor.captured.sized_capture import capture_sizes
from graphdoctor.captured.step import MOST_GRAPHS, CapturedStep
from graphdoctor.captured.study import NO_GPU, no_device, study, study_training, watched_device
from graphdoctor.graphs.calls import Unwatchable, signature
from graphdoctor.graphs.calls.signature import TENSORS, is_faithful
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.guards import Modes, all_hooks
from graphdoctor.graphs.modules import graphed_already, wrapper_of
from graphdoctor.pipeline import analyze
from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.values.errors import GraphDoctorError, UsageError
from graphdoctor.values.report import Mode

_NOT_YET = "it is studied on its first call, which has not come yet"


def capture(
    model: Any,
    *inputs: object,
    mode: Mode | None = None,
    state: object = None,
    max_graphs: int | None = None,
    sizes: Sequence[int] | None = None,
    dim: int = 0,
    clone_outputs: bool = True,
    **kwargs: object,
) -> Any:
    """Give a module that is the model, and replays CUDA graphs of it where that is proved safe.

    `inputs` and `kwargs` are those of one call; the model and they are on the device already. Without
    them, the first call of the kind that `mode` says is studied when it comes. What cannot be captured
    runs eagerly, and `explain()` of the result says why; so do calls that are not what was captured.
    `mode` "training" also captures the backward pass; None decides by the model's training flag. Up to
    `max_graphs` graphs are made, for inputs of other shapes. Without `clone_outputs` the next call
    writes over the outputs of the one before.

    With `sizes` there is a graph for each of these sizes of the dimension `dim`, all in one pool of
    memory. A call takes the smallest that it fits into, padded with zeros where the model is proved
    to give the same answer then; `hits` of the result counts what each served.

    A function or method is a step, such as one training step: see `CapturedStep`. Its first calls are
    studied when they come; `state` names modules and optimizers that neither its arguments nor its
    variables lead to.

    Raises `UsageError` for what is no module or was captured or compiled before, and
    `UserCodeError` where the model itself fails.
    """
    if not isinstance(model, torch.nn.Module) and callable(model):
        return _captured_step(model, state, max_graphs, is_called=bool(inputs or kwargs))
    max_graphs = 1 if max_graphs is None else max_graphs
    _check(model, max_graphs)
    how = _How(mode, max_graphs, clone_outputs, _checked_sizes(sizes, max_graphs, mode), dim)
    if not inputs and not kwargs:
        return _on_first_call(model, how)
    return module_of(model, _captured(model, Inputs(inputs, kwargs), how))


def _captured_step(
    step: Callable[..., object], state: object, max_graphs: int | None, *, is_called: bool
) -> CapturedStep:
    if is_called:
        raise UsageError(
            "capture() of a step takes no inputs: the step's first calls are studied when they come."
        )
    most = MOST_GRAPHS if max_graphs is None else max_graphs
    _check_count(most)
    return CapturedStep(step, state, max_graphs=most)


def _check_count(max_graphs: int) -> None:
    if max_graphs < 1:
        raise UsageError(
            f"max_graphs counts graphs, of which there is at least 1; got {max_graphs}."
        )


@dataclass(frozen=True, slots=True)
class _How:
    """The choices of `capture`."""

    mode: Mode | None
    max_graphs: int
    clones: bool
    sizes: tuple[int, ...] = ()
    dim: int = 0

    def is_for(self, model: torch.nn.Module) -> bool:
        """Whether a call of the model that is made now is of the kind to capture."""
        wants = torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters())
        return self.mode is None or (self.mode == "training") == wants


def _captured(model: torch.nn.Module, given: Inputs, how: _How) -> CapturedModel:
    if no_device():
        return _eager(model, _plan_without_gpu(model, given))
    if reason := unready(model, given):
        return _eager(model, CapturePlan("eager", obstacles=(reason,)))
    is_training = (how.mode or _mode_of(model)) == "training"
    if how.sizes and is_training:
        raise UsageError(
            'sizes are for inference: give mode="inference", or capture for training without sizes.'
        )
    left_out: tuple[str, ...] = ()
    if how.sizes:
        sized, left_out = capture_sizes(model, given, how.sizes, dim=how.dim, clones=how.clones)
        if sized is not None:
            return sized
    setup = Setup(Modes(), clones=how.clones, pool=Pool())

    def make(others: Inputs) -> GuardedGraph | str:
        if found_now := unready(model, others):
            return found_now
        with watched_device() as device:
            more = study(model, others, device, replace(setup, parts=False))
        return more.graph if more.graph is not None else "; ".join(more.obstacles)

    growth = OneEach(make, how.max_graphs)
    replays = Replays(model, context=setup.context, growth=growth)
    with watched_device() as device:
        if is_training:
            known, made = study_training(model, given, device, setup.context)
            plan, parts = training_plan(known, made)
            replays.training = parts
        else:
            found = study(model, given, device, setup)
            plan, parts = inference_plan(found)
            replays.parts = parts
            if found.graph is not None:
                growth.has(found.graph)
                replays.add(found.graph)
    plan = replace(plan, left_out=left_out)
    replays.why_not = plan.obstacles[0] if plan.obstacles else replays.why_not
    return CapturedModel(model, plan, replays, parts)


def _on_first_call(model: torch.nn.Module, how: _How) -> Any:
    """The model, which is studied when it is first called as `how` says, with that call's inputs."""
    waiting = _eager(model, CapturePlan("eager", obstacles=(_NOT_YET,)))
    made = module_of(model, waiting)
    lock, this = threading.Lock(), weakref.ref(made)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        captured = this()
        is_now = how.is_for(model) and not _is_recorded()
        if captured is None or not is_now or not lock.acquire(blocking=False):
            return model(*args, **kwargs)
        try:
            become(captured, _studied(model, Inputs(args, kwargs), how))
        finally:
            lock.release()
        return captured(*args, **kwargs)

    answer_with(made, call)
    return made


def _studied(model: torch.nn.Module, given: Inputs, how: _How) -> CapturedModel:
    """In the middle of a program, which goes on in eager whatever the study says."""
    if reason := no_device():
        return _eager(model, CapturePlan("eager", obstacles=(reason,)))
    try:
        return _captured(model, given, how)
    except GraphDoctorError as error:
        return _eager(model, CapturePlan("eager", obstacles=(str(error),)))


def _is_recorded() -> bool:
    """Whether the caller captures or compiles what runs now."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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
            "give it a module, or a function that is a step."
        )
    if wrapper := wrapper_of([model]):
        raise UsageError(f"{wrapper}; capture() takes the module inside it.")
    _check_count(max_graphs)


def _checked_sizes(
    sizes: Sequence[int] | None, max_graphs: int, mode: Mode | None
) -> tuple[int, ...]:
    if sizes is None:
        return ()
    found = tuple(sorted(set(sizes)))
    if not found or any(type(size) is not int or size < 1 for size in found):
        raise UsageError(f"sizes are whole numbers from 1 on, at least one; got {list(sizes)}.")
    if max_graphs != 1:
        raise UsageError("There is one graph for each of the sizes: leave max_graphs out.")
    if mode == "training":
        raise UsageError("sizes are for inference: capture for training without them.")
    return found


def _eager(model: torch.nn.Module, plan: CapturePlan) -> CapturedModel:
    """The model as it is, under the same interface."""
    replays = Replays(model, context=Modes())
    replays.why_not = plan.obstacles[0]
    return CapturedModel(model, plan, replays)


def _plan_without_gpu(model: torch.nn.Module, inputs: Inputs) -> CapturePlan:
    """Nothing is captured; the verdict is an emulated analysis's, which changes nothing."""
    try:
        report = analyze(model, *inputs.args, device="emulated", **inputs.kwargs)  # type: ignore[arg-type]
    except GraphDoctorError as error:
        return CapturePlan("eager", obstacles=(NO_GPU, f"an emulated GPU could not tell: {error}"))
    says = f"an emulated GPU says {report.verdict}: {report.reason}"
    return CapturePlan("eager", launches=0, obstacles=(NO_GPU, says), memory=report.memory)


def unready(model: torch.nn.Module, inputs: Inputs) -> str:
    """The first reason, in one sentence; "" where there is none."""
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = [tensor for _, tensor in named]
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):
            return f"{name} has no shape yet: call the model once"
        if type(tensor) not in TENSORS:
            return f"{name} is a {type(tensor).__name__}, a subclass of torch.Tensor"
    leaves = [leaf for leaf in input_leaves(inputs).values() if isinstance(leaf, torch.Tensor)]
    devices = {tensor.device for tensor in (*tensors, *leaves) if tensor.is_cuda}
    if not devices:
        return "neither the model nor an input is on the GPU: put them there, as by model.cuda()"
    if len(devices) > 1:
        return "the model and its inputs are on several GPUs, and a graph is captured on one"
    return (
        wrapper_of(model.modules())
        or graphed_already(model)
        or _hooked(model)
        or _unwatchable(inputs)
    )


def _unwatchable(inputs: Inputs) -> str:
    """What a graph could not be guarded against, or what a copy of the inputs would lack."""
    try:
        given = signature(inputs.args, inputs.kwargs)
        is_like = is_faithful(*given, clone_inputs(inputs))
    except Unwatchable as reason:
        return str(reason)
    return "" if is_like else "the inputs are nested in a way that cannot be copied"


def _hooked(model: torch.nn.Module) -> str:
    """torch's own hooks compute, as spectral norm's do; what others do besides, a replay would not."""
    for path, module in model.named_modules():
        for hooks in all_hooks(module):
            for hook in hooks.values():
                if not str(getattr(hook, "__module__", "")).startswith("torch."):
                    name = getattr(hook, "__qualname__", type(hook).__name__)
                    return (
                        f"{path or 'the model'} has the hook {name}, which a replay would not run"
                    )
    return ""
