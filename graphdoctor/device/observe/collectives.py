"""Collectives as they ran -> why they say less than a run on all GPUs would."""

from __future__ import annotations

from torch import distributed as dist

from graphdoctor.device.observe.operators import COLLECTIVES
from graphdoctor.values.recording import Op

_ALONE = (
    "its collectives ran in a world of one rank, which shows nothing of what ranks do to each other:"
    " run it with --ranks 2, or with torchrun --nproc-per-node 2 --no-python"
)
_ON_GLOO = "its collectives run over gloo, which copies through the host: whether a capture takes them is unknown"

UNWAITED = "it uses a tensor of an asynchronous collective that nobody has waited for: on a GPU that is a race"


def is_collective(op: Op) -> bool:
    """Whether a recorded operator runs on every rank of a group."""
    return op.name.startswith(COLLECTIVES)


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
