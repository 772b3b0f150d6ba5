"""A model and inputs -> why they cannot be captured as they are, found without a run."""

from __future__ import annotations

import torch

from graphdoctor.graphs.calls import Unwatchable, signature
from graphdoctor.graphs.guards import all_hooks
from graphdoctor.graphs.modules import graphed_already, wrapper_of
from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs
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
    return (
        wrapper_of(model.modules())
        or graphed_already(model)
        or _hooked(model)
        or _unwatchable(inputs)
    )


def _unwatchable(inputs: Inputs) -> str:
    """What a graph could not be guarded against, or what a copy of the inputs would lack."""
    try:
        key, tensors = signature(inputs.args, inputs.kwargs)
        copied = clone_inputs(inputs)
        key_of_copy, copies = signature(copied.args, copied.kwargs)
    except Unwatchable as reason:
        return str(reason)
    own = set(map(id, tensors))
    is_like = key == key_of_copy and not any(id(tensor) in own for tensor in copies)
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
