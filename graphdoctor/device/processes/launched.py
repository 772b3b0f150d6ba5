"""Collect on rank 0 what each rank of a launcher such as torchrun found."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from graphdoctor.values.errors import CannotDoItHere

STARTED_HERE = "GRAPHDOCTOR_STORE_PORT"  # a script may set MASTER_PORT
LIMIT_S = 120.0  # by when the last rank has to be done, once rank 0 is
_CONNECTING_S = 5.0  # to a store, on a machine with much to do
_PAUSE_S = 0.02  # between two looks


def rank_and_count() -> tuple[int, int]:
    """This process's rank and how many there are, as a launcher says it; 0 of 1 without one."""
    try:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, count) if 0 <= rank < count else (0, 1)


def take_own_gpu() -> None:
    """The GPU of this process's number, as scripts take it, where each process of this machine has one."""
    import torch

    local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdigit() and count.isdigit() and 1 < int(count) <= torch.cuda.device_count():
        torch.cuda.set_device(int(local))


def store_of_group(ordinal: int) -> tuple[Any, int, int] | None:
    """The store for the `ordinal`th default group of this process, this rank and the count.

    None where torch finds a store that is good. That of the ranks that graphdoctor starts outlives their groups,
    and a launcher that starts its ranks again may keep its own, in which gloo then finds addresses of
    processes that ended: both hold each group's keys apart here.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if STARTED_HERE in os.environ:  # by graphdoctor, as one of several ranks
        store = _store(("127.0.0.1", int(os.environ[STARTED_HERE])), is_master=False)
    elif attempt != "0" and _has_agent_store():
        store = _store(_address(), is_master=False)
    else:
        return None
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(f"graphdoctor/{attempt}/{ordinal}", store), *rank_and_count()


def gathered(text: str, *, limit_s: float = LIMIT_S) -> list[bytes] | None:
    """The texts of all ranks, in their order, on rank 0; None on the others.

    Raises CannotDoItHere where a rank is not done in time.
    """
    rank, count = rank_and_count()
    if rank != 0:
        _say("report", text, _meeting_place())
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
    store = _meeting_place(max(limit_s, _CONNECTING_S))
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


def _has_agent_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _meeting_place(limit_s: float = LIMIT_S) -> Any:
    """The launcher's own store, or what rank 0 holds at that address."""
    if rank_and_count()[0] != 0 or _has_agent_store():
        return _store(_address(), is_master=False, limit_s=limit_s)
    try:
        return _store(_address(), is_master=True, limit_s=limit_s)
    except RuntimeError:  # the model's group holds it still
        return _store(_address(), is_master=False, limit_s=limit_s)


def _store(address: tuple[str, int], *, is_master: bool, limit_s: float = LIMIT_S) -> Any:
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=min(limit_s, LIMIT_S))
    return TCPStore(*address, is_master=is_master, timeout=limit, wait_for_workers=False)


def _address() -> tuple[str, int]:
    try:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise CannotDoItHere(
            "RANK and WORLD_SIZE say that there are several ranks, and MASTER_ADDR and MASTER_PORT do not say"
            " where they meet"
        ) from None
