"""The autograd nodes that accumulate gradients of parameters, and which of them are from before a step.

Autograd makes such a node where there is none, and what hangs on it keeps it: an output, a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.target.state.walk import Walk

_SEEN = "graphdoctor: seen when the step before began"


def _leaves(roots: Mapping[str, object]) -> list[torch.Tensor]:
    """The parameters; none of DistributedDataParallel, which holds their nodes, made on the stream on which it was."""
    leaves = []
    for _, value, _ in Walk(roots):
        if is_data_parallel(type(value)):
            return []
        if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
            leaves.append(value)
    return leaves


def _accumulations(leaves: Sequence[torch.Tensor]) -> list[Any]:
    """The nodes of parameters; those without a reference are made now, and die with the list."""
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        return [node for leaf in leaves if (node := _node_of(leaf)) is not None]


def is_data_parallel(kind: type) -> bool:
    """Whether it is DistributedDataParallel, torch's or another, or a class of the user's that inherits from it."""
    is_module = issubclass(kind, torch.nn.Module)
    return is_module and any(base.__name__ == "DistributedDataParallel" for base in kind.__mro__)


def mark_all(roots: Mapping[str, object]) -> None:
    """Leave a mark on each, which is gone with the node where nobody holds that."""
    _mark(_leaves(roots), _SEEN)


def _mark(leaves: Sequence[torch.Tensor], key: str) -> None:
    for node in _accumulations(leaves):
        node.metadata[key] = True


def marked(roots: Mapping[str, object], key: str = _SEEN) -> list[Any]:
    """Those that still have the mark, which is taken off."""
    return _marked(_leaves(roots), key)


def _marked(leaves: Sequence[torch.Tensor], key: str) -> list[Any]:
    return [node for node in _accumulations(leaves) if node.metadata.pop(key, None)]


def held(roots: Mapping[str, object], key: str) -> list[Any]:
    """Those that something else keeps alive. `key` is the mark with which they are found."""
    leaves = _leaves(roots)
    _mark(leaves, key)
    return _marked(leaves, key)


def _node_of(leaf: torch.Tensor) -> Any:
    if is_lazy(leaf):
        return None
    try:
        with torch._C.DisableTorchFunctionSubclass():  # a subclass may make anything of it
            view: Any = leaf.view_as(leaf)
    except Exception:  # sparse, or a subclass that refuses in its own way
        return None
    return view.grad_fn.next_functions[0][0] if view.grad_fn is not None else None
