"""What a graph was captured with and other inputs -> which invariant they break, in a sentence."""

from __future__ import annotations

import torch

from graphdoctor.graphs.static_inputs import InputMismatch, check_inputs
from graphdoctor.target import Inputs
from graphdoctor.target.state.tree import input_leaves


def mismatch(captured: Inputs, found: Inputs) -> str:
    """The first difference: which input, in what, from what to what."""
    try:
        check_inputs(captured, found)
    except InputMismatch as difference:
        return str(difference)
    old, new = input_leaves(captured), input_leaves(found)
    for path, before in old.items():
        now = new[path]
        if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
            continue
        if before.stride() != now.stride():
            return (
                f"The strides of {path} changed from {before.stride()} to {now.stride()}: "
                "kernels and the strides of outputs are chosen by them."
            )
    return "The nesting of the inputs changed, or which of them are one and the same tensor."
