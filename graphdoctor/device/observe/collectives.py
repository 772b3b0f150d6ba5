"""Observes collectives and transfers: between which ranks, what these must have alike, when they are done."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import distributed as dist

from graphdoctor.device.observe.operators import COLLECTIVES, Call, OperatorFacts
from graphdoctor.values.recording import Exchange, Op

_ALONE = (
    "its collectives ran in a world of one rank, which shows nothing of what ranks do to each other:"
    " run it with --ranks 2, or with torchrun --nproc-per-node 2 --no-python"
)
_ON_GLOO = "its collectives run over gloo, which copies through the host: whether a capture takes them is unknown"

TRANSFERS = frozenset({"send", "recv_", "recv_any_source_"})
_ASYNC = ("async_op", "asyncOp")  # of torch now, and before 2.9
_MOVES_NOTHING = frozenset({"barrier", "monitored_barrier_"})

UNWAITED = (
    "it uses a tensor of an asynchronous collective without waiting for it: on a GPU that is a race"
)


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


_begun: list[Any] = []  # transfers
_done: WeakSet[Any] = WeakSet()  # gloo waits for ever for what it has waited for


def is_transfer(facts: OperatorFacts) -> bool:
    """Whether an operator moves a tensor between two ranks."""
    return facts.is_collective and facts.base_name in TRANSFERS


def begin_transfer(work: torch.ScriptObject) -> None:
    """Note a transfer that is done when somebody waits for it, or uses what it moves.

    A send that is waited for at once never ends where both ranks send first, as in `batch_isend_irecv`:
    NCCL starts them together.
    """
    _begun.append(torch._C._distributed_c10d.Work.unbox(work))


def finish_transfers() -> None:
    """Wait for all that were begun, in their order."""
    while _begun:
        work = _begun.pop(0)
        work.wait()
        _done.add(work)


def is_finished_transfer(work: Any) -> bool:
    """Whether a work is a transfer; then it, and those before it, have been waited for."""
    if any(work is one for one in _begun):
        finish_transfers()
    return work in _done
