"""Why a module cannot be captured, for reasons that need no run."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from graphdoctor.graphs.guards import all_hooks, has_global_hooks

# By name: most of them live in parts of torch that need not be there.
_WRAPPERS = {
    "DistributedDataParallel": "it synchronizes gradients while the backward pass runs",
    "DataParallel": "it copies the module to several devices in each call",
    "FullyShardedDataParallel": "it gathers and frees its parameters in each call",
    "FSDPModule": "it gathers and frees its parameters in each call",
    "OptimizedModule": "it is compiled by torch.compile already",
    "ScriptModule": "it is TorchScript, whose forward cannot be replaced",
}


def wrapper_of(modules: Iterable[torch.nn.Module]) -> str:
    """The first wrapper among them that graphs do not go with, in a sentence; "" for none."""
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                return f"{kind.__name__} cannot be graphed in parts: {_WRAPPERS[kind.__name__]}"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return f"{type(module).__name__} is compiled by its compile() already"
    return ""


def reason_against(module: torch.nn.Module) -> str:
    """Why this module cannot be graphed as a whole; "" where it can be tried."""
    inner = list(module.modules())
    return (
        wrapper_of(inner)
        or graphed_already(module)
        or _hooked(module, inner)
        or _unusable_tensor(module)
    )


def graphed_already(model: torch.nn.Module) -> str:
    """The first module in it that make_graphed_callables was given, in a sentence; "" for none."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if "make_graphed_callables" in getattr(forward, "__qualname__", ""):
            return f"{type(module).__name__} is graphed by make_graphed_callables already"
    return ""


def _hooked(module: torch.nn.Module, inner: Iterable[torch.nn.Module]) -> str:
    """The module's own hooks run around its forward, and do not matter."""
    if has_global_hooks():
        return "a hook for all modules is registered, which a replay would not run"
    for each in inner:
        if each is not module and any(all_hooks(each)):
            return f"the {type(each).__name__} inside it has a hook, which a replay would not run"
    return ""


def _unusable_tensor(module: torch.nn.Module) -> str:
    for name, tensor in module.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            return f"its parameter {name} has no shape yet"
        if tensor._backward_hooks:
            return (
                f"its parameter {name} has a gradient hook, which would be captured and run twice"
            )
    for name, buffer in module.named_buffers():
        if buffer.requires_grad:
            return f"its buffer {name} requires grad, and only parameters may"
    for name, held in [*module.named_parameters(), *module.named_buffers()]:
        if not held.is_cuda:
            return f"{name} is not on the GPU"
    return ""
