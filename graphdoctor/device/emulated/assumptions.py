"""Assume a result for an operator whose result depends on values, and describe the assumption.

Also those whose shape function torch lacks: nothing is assumed there, and nothing said.

What is assumed goes on: a check finds nothing wrong, a mask or a search takes everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphdoctor.device.observe.operators import Call

_EVERYTHING = "true of every element"
_DISTINCT = "of distinct values"
# Numbers for which "everything is as it should be" is one, or True; of all others it is 0, or False.
_HOLDS = frozenset({"all", "_is_all_true"})
MOST_ELEMENTS = 2**18  # of a tensor that is computed: a mask of 512 by 512 tokens

# Operators that hand values, or sizes that depend on values, to the host.
READS = frozenset(
    {
        "_local_scalar_dense", "equal", "allclose", "nonzero", "masked_select", "unique_consecutive",
        "_unique", "_unique2", "unique_dim", "unique_dim_consecutive", "repeat_interleave", "bincount",
        "nms",
    }
)  # fmt: skip

Assumption = tuple[Any, str]  # the result, and what it is assumed to be; "": nothing


def scalar_assumed(base_name: str) -> int:
    """The number that a single result of this operator is assumed to be."""
    return int(base_name in _HOLDS)


def needs_value(result: Any) -> str:
    """How a result that was computed from assumed values is said."""
    if isinstance(result, (bool, int, float, complex)):
        return repr(result)
    sizes = [tuple(item.shape) for item in _listed(result) if isinstance(item, torch.Tensor)]
    return f"of shape {sizes[0]}" if sizes else repr(result)


def _listed(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def _number(call: Call) -> Assumption:
    dtype = call.inputs[0].dtype
    value: Any = False if dtype is torch.bool else 0j if dtype.is_complex else 0
    value = 0.0 if dtype.is_floating_point else value
    return value, repr(value)


def _different(call: Call) -> Assumption:
    return False, "False"


def _everywhere(call: Call) -> Assumption:
    """The coordinates of all elements."""
    (given,) = call.inputs
    if given.numel() * max(1, given.dim()) <= MOST_ELEMENTS:
        return torch.ones(given.shape, dtype=torch.bool).nonzero(), _EVERYTHING
    return torch.empty((given.numel(), given.dim()), dtype=torch.int64), _EVERYTHING


def _all_selected(call: Call) -> Assumption:
    given, mask = call.inputs
    numel = torch.broadcast_shapes(given.shape, mask.shape).numel()
    return torch.zeros(numel, dtype=given.dtype), _EVERYTHING


def _distinct(call: Call) -> Assumption:
    """All outputs of the `unique` family along its whole length, or along one dimension."""
    given = call.inputs[0]
    along = call.args[1] if "dim" in call.facts.base_name.split("_") else None
    if call.facts.base_name == "unique_consecutive":
        along = call.args[3] if len(call.args) > 3 else call.kwargs.get("dim")
    length = given.numel() if along is None else given.shape[along]
    values = torch.zeros(given.numel() if along is None else given.shape, dtype=given.dtype)
    inverse = torch.arange(length)
    inverse = inverse.view(given.shape) if along is None else inverse
    counts = torch.ones(length, dtype=torch.int64)
    parts = (values, inverse) if call.facts.base_name == "_unique" else (values, inverse, counts)
    return parts, _DISTINCT


def _once_each(call: Call) -> Assumption | None:
    """`repeat_interleave` of repeats alone: which element each place of the result comes from."""
    repeats = call.inputs[0]
    size = call.kwargs.get("output_size")
    if size is not None:
        return torch.zeros(size, dtype=repeats.dtype), f"of {size} places, as output_size says"
    return torch.arange(repeats.numel(), dtype=repeats.dtype), "1 for every element"


def _counted(call: Call) -> Assumption:
    least = call.args[2] if len(call.args) > 2 else call.kwargs.get("minlength", 0)
    weights = call.inputs[1:]
    is_wide = bool(weights) and weights[0].dtype is not torch.float32
    dtype = torch.int64 if not weights else torch.float64 if is_wide else torch.float32
    size = max(1, least)
    return torch.zeros(size, dtype=dtype), f"of {size} bins"


def _all_kept(call: Call) -> Assumption:
    return torch.arange(call.inputs[0].shape[0]), "that no box is dropped"


def _whole_masks(call: Call) -> Assumption | None:
    """Indexing by a mask: as by the coordinates of all its elements."""
    given, indices = call.args[0], call.args[1]
    masks = [
        each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)
    ]
    if not masks:
        return None
    expanded: list[torch.Tensor | None] = []
    for each in indices:
        if each is None or all(each is not mask for mask in masks):
            expanded.append(None if each is None else _shape_of(each))
        else:
            places = torch.empty(each.numel(), dtype=torch.int64, device="meta")
            expanded.extend([places] * each.dim())
    with torch._C.DisableTorchFunction():
        made = torch.ops.aten.index.Tensor(_shape_of(given), expanded)
    return torch.empty_strided(made.size(), made.stride(), dtype=made.dtype), _EVERYTHING


def _ctc_loss(call: Call) -> Assumption:
    """As large as the longest targets could make it; no value is needed. Source: LossCTC.cpp."""
    scores, targets = call.inputs[:2]
    length = targets.shape[-1]
    steps, batch, _ = scores.shape
    made = scores.new_empty(batch), scores.new_empty(batch, steps, 2 * length + 1)
    return made, ""


def _ctc_gradient(call: Call) -> Assumption:
    return torch.empty_like(call.inputs[1]), ""


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


ASSUMED: Mapping[str, Callable[[Call], Assumption | None]] = {
    "_local_scalar_dense": _number,
    "equal": _different,
    "allclose": _different,
    "nonzero": _everywhere,
    "masked_select": _all_selected,
    "unique_consecutive": _distinct,
    "_unique": _distinct,
    "_unique2": _distinct,
    "unique_dim": _distinct,
    "unique_dim_consecutive": _distinct,
    "repeat_interleave": _once_each,
    "bincount": _counted,
    "nms": _all_kept,
    "index": _whole_masks,
    "_ctc_loss": _ctc_loss,
    "_ctc_loss_backward": _ctc_gradient,
}
