"""PyTorch's scenarios about backward passes, optimizers and libraries, as small targets."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.steps.making import data


def _training(model, optimizer, *, forward=None):
    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = (forward or model)(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def _layers():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).cuda()


def s15_recurrent_dropout():
    return nn.LSTM(8, 8, num_layers=2, dropout=0.5).cuda().train(), (data(),)


def s17_capturable_adam():
    model = _layers()
    return _training(model, torch.optim.Adam(model.parameters(), capturable=True))


def s18_adam_that_is_not_capturable():
    model = _layers()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # <- GD111
        return loss.detach()

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def s19_scaler_without_a_fused_optimizer():
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)  # <- GD112
        scaler.update()

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer, scaler])


def s24_checkpoint_without_the_generators_state():
    model = _layers()
    return _training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        forward=lambda x: checkpoint(model, x, use_reentrant=False, preserve_rng_state=False),
    )


def s71_gradients_accumulate():
    model = _layers()

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return SimpleNamespace(step=step, inputs=(data(),), state=[model])


def s72_two_forwards_before_a_backward():
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).mean() + model(x * 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def s73_a_backward_that_waits():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * min(1.0, grad.norm().item())  # <- GD101

    model = nn.Sequential(*(_layers() for _ in range(4)))

    def step(x):
        for parameter in model.parameters():
            parameter.grad = None
        loss = Clipped.apply(model(x)).square().mean()
        loss.backward()
        return loss.detach()

    return SimpleNamespace(step=step, inputs=(data(),), state=[model])


def s74_autocast_in_the_step():
    model = _layers()

    def forward(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).float()

    return _training(model, torch.optim.SGD(model.parameters(), lr=0.1), forward=forward)


def s76_benchmarked_convolution():
    model = nn.Conv2d(3, 4, 3).cuda()

    def step(x):
        with torch.backends.cudnn.flags(benchmark=True):
            return model(x)

    return step, (torch.randn(2, 3, 8, 8, device="cuda"),)


def s78_capturable_rmsprop():
    model = _layers()
    return _training(model, torch.optim.RMSprop(model.parameters(), capturable=True))
