"""A module -> the dictionaries that hold its hooks: Python that a replay does not run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as torch_module

_OF_A_MODULE = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_OF_ALL_MODULES = tuple(
    hooks
    for hooks in (
        getattr(torch_module, name, None)
        for name in (
            "_global_forward_hooks", "_global_forward_pre_hooks",
            "_global_backward_hooks", "_global_backward_pre_hooks",
        )
    )
    if hooks is not None
)  # fmt: skip


def all_hooks(module: torch.nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries of a module's own hooks; torch keeps the same ones for its whole life."""
    return [getattr(module, name) for name in _OF_A_MODULE if hasattr(module, name)]


def has_global_hooks() -> bool:
    """Whether hooks are registered that run for every module."""
    return any(_OF_ALL_MODULES)
