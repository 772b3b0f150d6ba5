"""Tensors that lie at another address in the next step, and inputs that are written."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.steps.making import data, steps_of


def hidden_state():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(8, 8)
            self.register_buffer("hidden", torch.zeros(4, 8))

        @torch.no_grad()
        def forward(self, x):
            self.hidden = torch.tanh(x + self.cell(self.hidden))  # <- GD205
            return self.hidden * 2

    return Net().cuda(), (data(),)


def list_of_states():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        @torch.no_grad()
        def forward(self, x):
            self.seen.append(x.mean(dim=0))
            return torch.stack(self.seen).sum(dim=0)  # <- GD206

    return Net().cuda(), (data(),)


def state_updated_in_place():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("hidden", torch.zeros(4, 8))

        @torch.no_grad()
        def forward(self, x):
            self.hidden.copy_(torch.tanh(x + self.hidden))
            return self.hidden * 2

    return Net().cuda(), (data(),)


def lazily_cached_constant():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = None

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.ones(8, 8, device=x.device).triu()
            return x @ self.mask

    return Net().cuda(), (data(),)


def inplace_activation_on_the_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)).cuda()

    def step(x):
        return model(x)  # <- GD210

    return SimpleNamespace(step=step, inputs=(data(),), state=[model])


def metric_replaced():
    s = SimpleNamespace(t=torch.zeros((), device="cuda"))

    def step(x):
        loss = x.square().mean()
        s.t = s.t + loss  # <- GD205
        return loss

    return steps_of(step, s)


def metric_in_place():
    s = SimpleNamespace(t=torch.zeros((), device="cuda"))

    def step(x):
        loss = x.square().mean()
        s.t += loss
        return loss

    return steps_of(step, s)


def parameter_replaced():
    model = nn.Linear(8, 8).cuda()

    def step(x):
        y = model(x)
        with torch.no_grad():
            model.weight.data = model.weight.data * 0.9  # <- GD205
        return y

    return steps_of(step, model)


def two_buffers_in_turn():
    s = SimpleNamespace(bufs=[torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")], i=0)

    def step(x):
        s.i += 1
        b = s.bufs[s.i % 2]
        b.add_(x.mean(0))  # <- GD205
        return x + b

    return steps_of(step, s)
