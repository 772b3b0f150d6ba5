"""What each rank of a launcher such as torchrun found -> all of it, on rank 0."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from graphdoctor.values.errors import CannotDoItHere

STARTED_HERE = "GRAPHDOCTOR_STORE_PORT"  # a script may set MASTER_PORT
_LIMIT_S = 120.0  # by when the last rank has to be done, once rank 0 is


def rank_and_count() -> tuple[int, int]:
    """This process's rank and how many there are, as a launcher says it; 0 of 1 without one."""
    try:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, count) if 0 <= rank < count else (0, 1)


def is_started_here() -> bool:
    """Whether graphdoctor itself started this process as one of several ranks."""
    return STARTED_HERE in os.environ


def take_own_gpu() -> None:
    """The GPU of this process's number, as scripts take it, where each process of this machine has one."""
    import torch

    local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdigit() and count.isdigit() and 1 < int(count) <= torch.cuda.device_count():
        torch.cuda.set_device(int(local))


def of_this_rank(ordinal: int) -> tuple[Any, int, int]:
    """The store where the ranks meet that graphdoctor started, for so many meetings, this rank and the count."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    rank, count = rank_and_count()
    store = TCPStore(
        "127.0.0.1", int(os.environ[STARTED_HERE]), is_master=False,
        timeout=timedelta(seconds=_LIMIT_S), wait_for_workers=False,
    )  # fmt: skip
    return PrefixStore(f"graphdoctor/{ordinal}", store), rank, count


def _store(*, is_master: bool) -> Any:
    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(
            *_address(),
            is_master=is_master,
            timeout=timedelta(seconds=_LIMIT_S),
            wait_for_workers=False,
        )
    except RuntimeError:
        if not is_master:
            raise
        return _store(is_master=False)  # the model's group holds it still


def _address() -> tuple[str, int]:
    try:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise CannotDoItHere(
            "RANK and WORLD_SIZE say that there are several ranks, and MASTER_ADDR and MASTER_PORT do not say"
            " where they meet"
        ) from None


def gathered(text: str) -> list[bytes] | None:
    """The texts of all ranks, in their order, on rank 0; None on the others.

    Raises CannotDoItHere where a rank is not done in time.
    """
    rank, count = rank_and_count()
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _store(is_master=rank == 0 and not has_store)
    run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"graphdoctor/{run}/report"
    store.set(f"{key}/{rank}", text)
    if rank != 0:
        return None
    found = []
    for other in range(count):
        try:
            found.append(store.get(f"{key}/{other}"))
        except RuntimeError as error:
            raise CannotDoItHere(
                f"rank {other} had no report {_LIMIT_S:g} s after rank 0: see what it printed"
            ) from error
    return found
