"""A call of a collective -> what has to be alike on every rank of its group, as text, and the group."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from graphdoctor.device.observe.collectives import arguments_of, group_of
from graphdoctor.device.observe.operators import Call

# The sizes that NCCL compares on no rank, and needs alike on all. Those of the others depend on the rank:
# gathered and scattered tensors are named on one rank only, and all-to-all has a size for each pair.
_LIKE_SIZES = {
    "allreduce": True, "all_reduce": True, "allreduce_coalesced": True, "all_reduce_coalesced": True,
    "broadcast": True, "reduce": True,
    "_allgather_base": True, "all_gather_into_tensor": True, "allgather_into_tensor_coalesced": True,
    "all_gather_into_tensor_coalesced": True, "all_gather_into_tensor_out": True,
    "_reduce_scatter_base": True, "reduce_scatter_tensor": True, "reduce_scatter_tensor_coalesced": True,
    "reduce_scatter_tensor_out": True,
    "allgather": False, "allgather_coalesced": False, "gather": False, "scatter": False,
    "reduce_scatter": False, "alltoall": False, "alltoall_base": False, "all_to_all_single": False,
    "barrier": False,
}  # fmt: skip
_CHOICES = ("reduce_op", "root_rank", "src")


COLD = "NCCL error: unhandled cuda error (a communicator cannot be made during a capture)"


class Called(NamedTuple):
    """`says` names the collective with all that its ranks have to have alike."""

    name: str
    says: str
    group: Any


def called(call: Call) -> Called | None:
    """None for what is no collective of a whole group: sends, receives and waits."""
    name = call.facts.base_name.rstrip("_")
    if name not in _LIKE_SIZES:
        return None
    given = arguments_of(call)
    group = group_of(given)
    if group is None:
        return None
    choices = [f"{one}={given[one]}" for one in _CHOICES if isinstance(given.get(one), str | int)]
    sizes = [_size(tensor, with_count=_LIKE_SIZES[name]) for tensor in call.inputs]
    if not _LIKE_SIZES[name]:
        sizes = list(dict.fromkeys(sizes))  # so many on one rank, and so many on another
    return Called(name, f"{name}({', '.join([*sizes, *choices])})", group)


def _size(tensor: torch.Tensor, *, with_count: bool) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tensor.numel()} {dtype}" if with_count else dtype
