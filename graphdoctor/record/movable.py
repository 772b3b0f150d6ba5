"""A target -> the tensors of its state that `.cuda()` moves."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphdoctor.target import Target


def movable(target: Target) -> Iterator[torch.Tensor]:
    """What `.cuda()` moves: parameters with their gradients and buffers; and optimizer state with them."""
    for root in target.roots.values():
        if isinstance(root, torch.nn.Module):
            yield from _with_grads(root.parameters())
            yield from root.buffers()
        elif isinstance(root, torch.optim.Optimizer):
            for group in root.param_groups:
                yield from _with_grads(group["params"])
                yield from _state_of(root, group)


def _with_grads(parameters: Iterator[torch.Tensor] | list[torch.Tensor]) -> Iterator[torch.Tensor]:
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
