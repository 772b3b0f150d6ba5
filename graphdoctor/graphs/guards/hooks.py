"""The dictionaries that hold hooks of modules: Python that a replay does not run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as torch_module

# Those that run before or after a forward come first.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_ALL_MODULES: list[dict[Any, Any]] = [
    getattr(torch_module, f"_global{name}")
    for name in HOOKS
    if hasattr(torch_module, f"_global{name}")
]


def all_hooks(module: torch.nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries of a module's own hooks; torch keeps the same ones for the module's whole life."""
    return [getattr(module, name) for name in HOOKS if hasattr(module, name)]


def has_global_hooks() -> bool:
    """Whether hooks are registered that run for every module."""
    return any(OF_ALL_MODULES)
