"""How an odd step is made, and all there are by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS: dict[str, Callable[[], tuple[Any, ...]]] = {}
CUDA = "cuda"


def odd(build: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """`build` returns the step, its inputs, and modules or tensors that it changes."""
    STEPS[build.__name__] = build
    return build


def x8(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (8, 8)), device=CUDA)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()


def trained(model: nn.Module, optimizer: Any = None, loss: Any = None) -> Callable[..., Any]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = (loss or (lambda out: out.square().mean()))(model(x))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def scaled(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    """A step of float16, its gradients scaled."""
    scaler = torch.amp.GradScaler(CUDA)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(CUDA, dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step
