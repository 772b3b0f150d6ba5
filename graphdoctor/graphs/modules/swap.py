"""Replace a module's forward, and restore it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_ABSENT = object()


def put_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> object:
    """Let calls of the module use `forward`; gives what `take_back` needs."""
    before = module.__dict__.get("forward", _ABSENT)
    module.__dict__["forward"] = forward
    return before


def take_back(module: torch.nn.Module, before: object) -> None:
    """Put back what was there before `put_forward`: most often nothing, but the class's method."""
    if before is _ABSENT:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = before


@contextmanager
def swapped_forward(module: torch.nn.Module, replacement: Callable[..., Any]) -> Iterator[None]:
    """Within the block, calls go to `replacement`, which gets the original forward first."""
    before = put_forward(module, partial(replacement, module.forward))
    try:
        yield
    finally:
        take_back(module, before)
