"""A model and inputs -> why they cannot be captured as they are, found without a run."""

from __future__ import annotations

import torch

from graphdoctor.graphs.modules.fitness import wrapper_of
from graphdoctor.graphs.modules.hooks import all_hooks
from graphdoctor.target import Inputs
from graphdoctor.target.state.tree import input_leaves

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def unready(model: torch.nn.Module, inputs: Inputs) -> str:
    """The first reason, in one sentence; "" where there is none."""
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = [tensor for _, tensor in named]
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):
            return f"{name} has no shape yet: call the model once"
        if type(tensor) not in _PLAIN:
            return f"{name} is a {type(tensor).__name__}, a subclass of torch.Tensor"
    leaves = [leaf for leaf in input_leaves(inputs).values() if isinstance(leaf, torch.Tensor)]
    devices = {tensor.device for tensor in (*tensors, *leaves) if tensor.is_cuda}
    if not devices:
        return "neither the model nor an input is on the GPU: put them there, as by model.cuda()"
    if len(devices) > 1:
        return "the model and its inputs are on several GPUs, and a graph is captured on one"
    return wrapper_of(model.modules()) or _graphed(model) or _hooked(model)


def _graphed(model: torch.nn.Module) -> str:
    for path, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if "make_graphed_callables" in getattr(forward, "__qualname__", ""):
            return f"{path or 'the model'} is graphed by make_graphed_callables already"
    return ""


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
