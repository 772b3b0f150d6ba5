"""Collectives as they ran -> between whom, beside what, and why they say less than a run on all GPUs would."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

from graphdoctor.device.observe.operators import COLLECTIVES, Call
from graphdoctor.values.recording import Exchange, Op

_ALONE = (
    "its collectives ran in a world of one rank, which shows nothing of what ranks do to each other:"
    " run it with --ranks 2, or with torchrun --nproc-per-node 2 --no-python"
)
_ON_GLOO = "its collectives run over gloo, which copies through the host: whether a capture takes them is unknown"

TRANSFERS = frozenset({"send", "recv_", "recv_any_source_"})
_ASYNC = ("async_op", "asyncOp")  # of torch now, and before 2.9
_MOVES_NOTHING = frozenset({"barrier", "monitored_barrier_"})

UNWAITED = "it uses a tensor of an asynchronous collective that nobody has waited for: on a GPU that is a race"


def is_collective(op: Op) -> bool:
    """Whether a recorded operator runs on every rank of a group."""
    return op.name.startswith(COLLECTIVES)


def exchange_of(call: Call, *, on_side_stream: bool) -> Exchange | None:
    """None for what moves nothing between ranks, such as a wait.

    c10d's own are waited for at once where they say so, functional ones by an operator of their own.
    """
    given = arguments_of(call)
    group = group_of(given)
    if group is None or call.facts.base_name in _MOVES_NOTHING:
        return None
    says = [given[name] for name in _ASYNC if name in given]  # true, where it is left out
    is_beside = on_side_stream or False not in says
    is_transfer = call.facts.base_name in TRANSFERS
    return Exchange(2 if is_transfer else dist.get_world_size(group), is_beside)


def arguments_of(call: Call) -> dict[str, Any]:
    """By the names of its schema; what was left out is not there."""
    names = (argument.name for argument in call.func._schema.arguments)
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def group_of(given: dict[str, Any]) -> Any:
    """The process group of a collective with these arguments."""
    group = given.get("process_group", given.get("group_name"))
    c10d: Any = dist.distributed_c10d
    if isinstance(group, torch.ScriptObject):
        group = torch._C._distributed_c10d.ProcessGroup.unbox(group).group_name
    return c10d._resolve_process_group(group) if isinstance(group, str) else group


def runs_with_others() -> bool:
    """Whether this process is one rank of a group, if only of one."""
    return dist.is_available() and dist.is_initialized()


def doubt_of_ranks() -> str | None:
    """Why the collectives of the default group are not those of NCCL on several GPUs."""
    if not runs_with_others():
        return None
    if "nccl" not in str(dist.get_backend()):
        return _ON_GLOO
    return _ALONE if dist.get_world_size() == 1 else None
