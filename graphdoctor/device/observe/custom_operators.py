"""An operator that is not PyTorch's own -> the Python that it is made of, or why nobody knows what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphdoctor.device.observe.operators import OperatorFacts

# What is PyTorch's own: op_db and its source say what their kernels do in a capture.
_PYTORCHS = ("aten", "prims", "prim", "mkldnn", "quantized", "inductor", "rngprims", "debugprims")


def python_body(func: Any, facts: OperatorFacts) -> Callable[..., Any] | None:
    """The function that `torch.library.custom_op` made an operator of, where it is for all devices.

    None where a GPU would run something else: a kernel that was registered for CUDA alone.
    """
    if _is_pytorchs(facts):
        return None
    from torch._library import custom_ops

    known = getattr(custom_ops, "OPDEFS", {})  # torch 2.4 and newer
    kernels = getattr(known.get(func._name), "_backend_fns", {})
    return None if "cuda" in kernels else kernels.get(None)


def unseen(facts: OperatorFacts) -> str | None:
    """Why the emulated result of a call may not be a GPU's; None for PyTorch's own operators."""
    if _is_pytorchs(facts):
        return None
    return f"{facts.name} is not PyTorch's own: whether its kernel waits for the device is unknown"


def _is_pytorchs(facts: OperatorFacts) -> bool:
    """Higher-order operators have no namespace."""
    namespace, dot, _ = facts.name.partition(".")
    return facts.is_aten or not dot or namespace in _PYTORCHS
