"""A step that its program has run -> whether a gradient would go on accumulating on the default stream.

Autograd runs the node that accumulates a parameter's gradient on the stream on which that node was made,
and an output or a loss of an earlier step keeps the node alive. No capture may depend on the default stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.target.state.walk import Walk
from graphdoctor.values.figures import count_text

_MARK = "graphdoctor looked at this node"
_SAYS = (
    "The program still holds an output or a loss of an earlier step, and with it the nodes that"
    " accumulate the gradients of {parameters} ({name} ...), on the default stream: a capture that begins"
    " there is refused. {advice}."
)
_FREE = "Capture before the first step, or `del` what the step before has left"
_OVERRIDE = "torch.autograd.graph.set_override_stale_capture_stream(True)"


def held_gradients(roots: Mapping[str, object]) -> tuple[str, ...]:
    """A sentence where an earlier pass is still held; DistributedDataParallel holds nodes of its own."""
    held = list(_held(roots))
    if not held:
        return ()
    advice = f"{_FREE}, or call {_OVERRIDE}" if can_override_streams() else _FREE
    parameters = count_text(len(held), "parameter")
    return (_SAYS.format(parameters=parameters, name=held[0], advice=advice),)


def can_override_streams() -> bool:
    """Whether this torch can accumulate gradients on the stream of the capture instead."""
    return hasattr(torch.autograd.graph, "set_override_stale_capture_stream")


def _held(roots: Mapping[str, object]) -> Iterator[str]:
    leaves: dict[str, torch.Tensor] = {}
    for path, value, _ in Walk(roots):
        if type(value).__name__ == "DistributedDataParallel":
            return
        if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
            leaves[path] = value
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        yield from (path for path, leaf in leaves.items() if _is_held(leaf))


def _is_held(leaf: torch.Tensor) -> bool:
    """Whether the node outlives this look at it: a mark on it is still there at the next."""
    _node_of(leaf).metadata[_MARK] = True
    return _node_of(leaf).metadata.pop(_MARK, None) is not None


def _node_of(leaf: torch.Tensor) -> Any:
    """The node that accumulates its gradient, made now where there was none."""
    view: Any = leaf.view_as(leaf)
    return view.grad_fn.next_functions[0][0]
