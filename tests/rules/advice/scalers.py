"""GD112: gradient scalers that read their flags on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

SCALERS = Variants()

Params = list[nn.Parameter]


def rate() -> torch.Tensor:
    return torch.tensor(0.01, device="cuda")


def scaled(
    optimizer_of: Callable[[Params], torch.optim.Optimizer],
    *,
    clips: bool = False,
    reads: bool = False,
    has_scaler: bool = True,
    steps: bool = True,
) -> object:
    """A step with a scaler, which may unscale to clip, and may ask whether the scale has fallen."""
    model = nn.Linear(4, 4, device="cuda")
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = optimizer_of(list(model.parameters()))
    scaler = torch.amp.GradScaler("cuda", enabled=has_scaler)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale() if reads else 0.0
        if steps:
            scaler.step(optimizer)
            scaler.update()
        if reads and scaler.get_scale() < before:
            return loss * 0
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer, scaler])


def sgd(params: Params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01)


def fused_sgd(params: Params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, fused=True)


def adamw(params: Params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=rate(), capturable=True)


def fused_adamw(params: Params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=rate(), capturable=True, fused=True)


def rmsprop(params: Params) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=rate(), capturable=True)


class Lion(torch.optim.Optimizer):
    """An optimizer of its own code, which knows nothing of flags."""

    def __init__(self, params: Params, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                update = (state["mean"] * 0.9 + p.grad * 0.1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["mean"].lerp_(p.grad, 0.01)


@SCALERS.before("GD112", "Construct SGD with `fused=True`")
def clipped_sgd() -> object:
    return scaled(sgd, clips=True)


@SCALERS.after
def clipped_fused_sgd() -> object:
    return scaled(fused_sgd, clips=True)


@SCALERS.before("GD112", "Construct AdamW with `fused=True`")
def scaled_adamw() -> object:
    return scaled(adamw)


@SCALERS.after
def scaled_fused_adamw() -> object:
    return scaled(fused_adamw)


@SCALERS.before("GD112", "RMSprop has no fused=True")
def scaled_rmsprop() -> object:
    return scaled(rmsprop, clips=True)


@SCALERS.after
def rmsprop_without_scaler() -> object:
    return scaled(rmsprop, clips=True, has_scaler=False)


@SCALERS.before("GD112", "Lion has no fused=True", same=False)
def scaled_lion() -> object:
    return scaled(Lion)


@SCALERS.after
def lion_outside() -> object:
    return scaled(Lion, steps=False)


@SCALERS.before("GD112", "get_scale()")
def scale_read_for_a_schedule() -> object:
    return scaled(fused_sgd, reads=True)


@SCALERS.after
def scale_read_outside() -> object:
    return scaled(fused_sgd)


def adversarial(optimizer_of: Callable[[Params], torch.optim.Optimizer]) -> object:
    """Two optimizers and one scaler."""
    parts = nn.Linear(4, 4, device="cuda"), nn.Linear(4, 1, device="cuda")
    for part in parts:
        nn.init.constant_(part.weight, 0.5)
        nn.init.zeros_(part.bias)
    makes, judges = parts
    first, second = (optimizer_of(list(part.parameters())) for part in parts)
    scaler = torch.amp.GradScaler("cuda")

    def step(x):
        second.zero_grad()
        loss = judges(x).mean() - judges(makes(x).detach()).mean()
        scaler.scale(loss).backward()
        scaler.step(second)
        first.zero_grad()
        made = judges(makes(x)).mean()
        scaler.scale(made).backward()
        scaler.step(first)
        scaler.update()
        second.zero_grad()
        return loss, made

    return SimpleNamespace(
        step=step, inputs=(cuda(8, 4),), state=[makes, judges, first, second, scaler]
    )


@SCALERS.before("GD112", "Construct SGD with `fused=True`")
def adversaries_with_one_scaler() -> object:
    return adversarial(sgd)


@SCALERS.after
def adversaries_fused() -> object:
    return adversarial(fused_sgd)
