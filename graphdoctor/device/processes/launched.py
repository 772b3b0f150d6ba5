"""What each rank of a launcher such as torchrun found -> all of it, on rank 0."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from graphdoctor.values.errors import CannotDoItHere

STARTED_HERE = "GRAPHDOCTOR_STORE_PORT"  # a script may set MASTER_PORT
LIMIT_S = 120.0  # by when the last rank has to be done, once rank 0 is
_PAUSE_S = 0.02  # between two looks


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
        timeout=timedelta(seconds=LIMIT_S), wait_for_workers=False,
    )  # fmt: skip
    return PrefixStore(f"graphdoctor/{ordinal}", store), rank, count


def gathered(text: str, *, limit_s: float = LIMIT_S) -> list[bytes] | None:
    """The texts of all ranks, in their order, on rank 0; None on the others.

    Raises CannotDoItHere where a rank is not done in time.
    """
    rank, count = rank_and_count()
    if rank != 0:
        _say("report", text, _store())
        return None
    found = said_by_all("report", text, limit_s=limit_s)
    missing = [other for other in range(count) if other not in found]
    if missing:
        raise CannotDoItHere(
            f"rank {missing[0]} had no report {limit_s:g} s after rank 0: see what it printed"
        )
    return [found[other] for other in range(count)]


def said_by_all(what: str, text: str, *, limit_s: float) -> dict[int, bytes]:
    """What each rank says of it, by rank, of those that say it within the limit."""
    rank, count = rank_and_count()
    store = _store()
    _say(what, text, store)
    over_s = time.monotonic() + limit_s
    found = {rank: text.encode()}
    for other in range(count):
        if other not in found:
            key = [_key(what, other)]
            while not (is_there := store.check(key)) and time.monotonic() < over_s:
                time.sleep(_PAUSE_S)
            if is_there:
                found[other] = store.get(*key)
    return found


def _say(what: str, text: str, store: Any) -> None:
    store.set(_key(what, rank_and_count()[0]), text)


def _key(what: str, rank: int) -> str:
    """Of this attempt: a launcher that starts its ranks again may keep its store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"graphdoctor/{attempt}/{what}/{rank}"


def _store(*, is_master: bool | None = None) -> Any:
    """Where the ranks meet: the launcher's own, or what rank 0 holds at that address."""
    from torch._C._distributed_c10d import TCPStore

    if is_master is None:
        has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = rank_and_count()[0] == 0 and not has_store
    try:
        return TCPStore(
            *_address(),
            is_master=is_master,
            timeout=timedelta(seconds=LIMIT_S),
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
