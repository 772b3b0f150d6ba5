"""Steps with optimizers, averages and scalers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from odd.step import CUDA, mlp, odd, scaled, trained, x8


@odd
def lbfgs():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, (x8(),), model


@odd
def adam_capturable_foreach():
    model = mlp()
    return trained(model, torch.optim.Adam(model.parameters(), capturable=True)), (x8(),), model


@odd
def adam_fused():
    model = mlp()
    return trained(model, torch.optim.Adam(model.parameters(), fused=True)), (x8(),), model


@odd
def adam_fused_capturable():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    return trained(model, optimizer), (x8(),), model


@odd
def sgd_with_cosine_schedule():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    run = trained(model, optimizer)

    def step(x):
        loss = run(x)
        schedule.step()
        return loss

    return step, (x8(),), model


@odd
def ema_by_swa_utils():
    model = mlp()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    run = trained(model)

    def step(x):
        loss = run(x)
        ema.update_parameters(model)
        return loss

    return step, (x8(),), model, ema


@odd
def swa_average():
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    run = trained(model)

    def step(x):
        loss = run(x)
        average.update_parameters(model)
        return loss

    return step, (x8(),), model, average


@odd
def ema_by_hand():
    model = mlp()
    twin = copy.deepcopy(model).requires_grad_(False)
    run = trained(model)

    def step(x):
        loss = run(x)
        with torch.no_grad():
            for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        return loss

    return step, (x8(),), model, twin


@odd
def ema_by_load_state_dict():
    model = mlp()
    twin = copy.deepcopy(model)

    def step(x):
        mixed = {k: 0.9 * v + 0.1 * model.state_dict()[k] for k, v in twin.state_dict().items()}
        twin.load_state_dict(mixed)
        return twin(x)

    return step, (x8(),), model, twin


@odd
def grad_scaler():
    model = mlp()
    return scaled(model, torch.optim.SGD(model.parameters(), lr=0.01)), (x8(),), model


@odd
def grad_scaler_scale_only():
    model = mlp()
    scaler = torch.amp.GradScaler(CUDA)

    def step(x):
        model.zero_grad()
        with torch.autocast(CUDA, dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        return loss.detach()

    return step, (x8(),), model


@odd
def clip_by_norm():
    model = mlp()

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return step, (x8(),), model


@odd
def clip_by_norm_that_raises():
    model = mlp()

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    return step, (x8(),), model


@odd
def accumulate_every_other_step():
    model, turns = mlp(), itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        if next(turns) % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, (x8(),), model


@odd
def grad_scaler_of_a_fused_optimizer():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
    return scaled(model, optimizer), (x8(),), model


@odd
def muon():
    model = nn.Linear(8, 8, bias=False).cuda()
    return trained(model, torch.optim.Muon(model.parameters(), 0.01)), (x8(),), model


@odd
def backward_twice():
    model = mlp()

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.detach()

    return step, (x8(),), model


def adversarial(before_generator: Callable[..., None]) -> tuple[Any, ...]:
    """A generator's loss reaches the discriminator, whose gradients are zeroed after it."""
    makes, judges = mlp(), mlp()
    first = torch.optim.SGD(makes.parameters(), lr=0.1)
    second = torch.optim.SGD(judges.parameters(), lr=0.1)

    def step(x):
        first.zero_grad()
        before_generator(second)
        made = makes(torch.randn_like(x))
        judges(made).mean().backward()
        first.step()
        second.zero_grad()
        (judges(x).mean() - judges(made.detach()).mean()).backward()
        second.step()

    return step, (x8(),), nn.ModuleList([makes, judges])


@odd
def gan_with_gradients_left():
    return adversarial(lambda second: None)


@odd
def gan_with_gradients_zeroed():
    return adversarial(lambda second: second.zero_grad())
