"""A block of code -> the outermost modules that it called, each with the inputs of its first call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class Call:
    """`args` and `kwargs` are copies: the module may write into its inputs."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def watching(module: torch.nn.Module | None) -> Iterator[list[Call]]:
    """The calls so far. torch's own global hooks are not told keywords, so calls are intercepted."""
    calls: list[Call] = []
    depth = 0
    original = torch.nn.Module.__call__

    def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        is_meant = self is module if module is not None else depth == 0
        if is_meant and all(self is not known.module for known in calls):
            calls.append(Call(self, _copied(args), _copied(kwargs)))
        depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            depth -= 1

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


def _copied(inputs: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, inputs)
