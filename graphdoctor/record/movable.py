"""A target -> the tensors of its state that `.cuda()` moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from graphdoctor.target import Target
from graphdoctor.target.state.walk import Walk


def movable(target: Target) -> Iterator[torch.Tensor]:
    """What `.cuda()` moves: parameters with their gradients and buffers; and optimizer state with them.

    Of all modules and optimizers that the roots lead to: a trainer has its model as an attribute.
    """
    seen: set[int] = set()
    for _, value, _ in Walk(target.roots, with_empty=False):
        for tensor in _of(value):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _of(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        is_whole = isinstance(value, torch.jit.ScriptModule)  # else the walk comes to those inside
        yield from _with_grads(value.parameters(recurse=is_whole))
        yield from value.buffers(recurse=is_whole)
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from _with_grads(group["params"])
            yield from _state_of(value, group)


def _with_grads(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _state_of(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> Iterator[torch.Tensor]:
    """State lies where its parameter lies; a count of steps on the CPU, unless capturable or fused."""
    counts_on_device = bool(group.get("capturable") or group.get("fused"))
    for parameter in group["params"]:  # type: ignore[attr-defined]
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and (name != "step" or counts_on_device):
                yield value
