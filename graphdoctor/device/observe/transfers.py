"""Sends and receives between two ranks -> done when somebody waits for them, or uses what they move.

A send that is waited for at once never ends where both ranks send first, as in `batch_isend_irecv`: NCCL
starts them together.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch

from graphdoctor.device.observe.collectives import TRANSFERS

_begun: list[Any] = []
_done: WeakSet[Any] = WeakSet()  # gloo waits for ever for what it has waited for


def is_transfer(base_name: str, *, is_collective: bool) -> bool:
    """Whether an operator moves a tensor between two ranks."""
    return is_collective and base_name in TRANSFERS


def begin(work: torch.ScriptObject) -> None:
    """Note a transfer that nobody has waited for."""
    _begun.append(torch._C._distributed_c10d.Work.unbox(work))


def finish() -> None:
    """Wait for all transfers that were begun, in their order."""
    while _begun:
        work = _begun.pop(0)
        work.wait()
        _done.add(work)


def is_finished(work: Any) -> bool:
    """Whether a work is a transfer; then it, and those before it, have been waited for."""
    if any(work is one for one in _begun):
        finish()
    return work in _done
