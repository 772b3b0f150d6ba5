"""State, random numbers and time on the host, which a replay does not run."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.steps.making import data, steps_of


def layer_drop():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

        def forward(self, x):
            for layer in self.layers:
                if random.random() < 0.5:  # <- GD207
                    continue
                x = layer(x)
            return x

    return Net().cuda(), (data(),)


def random_index():
    def step(x):
        row = np.random.randint(4)  # <- GD207
        return x - x[row]

    return step, (data(),)


def layer_drop_on_the_cpu():
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]).cuda()

    def step(x):
        for layer in layers:
            skip = torch.rand([])  # <- GD209
            if skip < 0.5:
                continue
            x = layer(x)
        return x

    return SimpleNamespace(step=step, inputs=(data(),), state=[layers])


def noise_from_the_cpu():
    def step(x):
        noise = torch.rand(())  # <- GD209
        return x * noise

    return step, (data(),)


def noise_copied_over():
    def step(x):
        noise = torch.randn(8)
        return x + noise.cuda()  # <- GD104

    return step, (data(),)


def alternating_loss():
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        y = x * 2
        if state.calls % 2 == 0:  # <- GD201
            y = y + torch.sin(x)
        return y

    return SimpleNamespace(step=step, inputs=(data(),), state=[state])


def rounds_by_a_counter():
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        for _ in range(state.calls % 3):  # <- GD201
            x = torch.sin(x)
        return x + 1

    return SimpleNamespace(step=step, inputs=(data(),), state=[state])


def position_in_a_cache():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.randn(32, 8))
            self.position = 0

        def forward(self, x):
            self.position += 1
            seen = self.cache[: self.position]  # <- GD202
            return x + seen.sum(dim=0)

    return Net().cuda(), (data(),)


def noise_level_by_step():
    """As schedulers of diffusion do, which keep their table on the CPU."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * levels[self.calls]  # <- GD211

    levels = torch.linspace(1, 0, 64)
    return Net().cuda(), (data(),)


def row_of_a_table():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(64, 8))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + self.table[self.calls]  # <- GD203

    return Net().cuda(), (data(),)


def written_optimizer():
    model = nn.Linear(8, 8).cuda()
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(grad, alpha=0.1 / (1 - 0.9**state.calls))  # <- GD203
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, state])


def scaled_loss_in_training():
    model = nn.Linear(8, 8).cuda()
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        model.zero_grad()
        loss = model(x).square().mean() * (0.5**state.calls)  # <- GD203
        loss.backward()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, state])


def scheduled_adam():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # <- GD204
        scheduler.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer, scheduler])


def changing_cpu_scalar():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            self.scale *= 0.5
            return x * torch.tensor(self.scale)  # <- GD211

    return Net().cuda(), (data(),)


def cpu_scalar_input():
    def step(x, scale):
        return x * scale  # <- GD211

    def inputs():
        return data(), torch.rand(())

    return SimpleNamespace(step=step, inputs=inputs)


def constant_cpu_scalar():
    half = torch.tensor(0.5)

    def step(x):
        return x * half + x * torch.tensor(2.0)

    return step, (data(),)


def scheduled_dropout():
    s = SimpleNamespace(p=0.5)

    def step(x):
        s.p *= 0.9
        return F.dropout(x, s.p)  # <- GD203

    return steps_of(step, s)


def accumulated_gradients():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    s = SimpleNamespace(i=0)

    def step(x):
        s.i += 1
        loss = model(x).square().mean()
        loss.backward()
        if s.i % 2 == 0:  # <- GD201
            opt.step()
            opt.zero_grad()
        return loss

    return steps_of(step, model, opt, s)


def early_return_by_a_counter():
    s = SimpleNamespace(i=0)

    def step(x):
        s.i += 1
        y = x * 2
        if s.i % 3:  # <- GD201
            return y
        z = y.sin()
        return z * 2

    return steps_of(step, s)


def growing_range():
    s = SimpleNamespace(i=3)

    def step(x):
        s.i += 1
        pos = torch.arange(s.i, device=x.device)  # <- GD202
        return x.sum() + pos.float().mean()

    return steps_of(step, s)


def steps_counted_on_the_cpu():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()  # <- GD209
        return loss

    return steps_of(step, model, opt)


def flag_from_the_cpu():
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]).cuda()

    def step(x):
        for layer in layers:
            dropped = False
            if torch.rand([]) < 0.5:  # <- GD209
                dropped = True
            if not dropped:
                x = layer(x)
        return x

    return SimpleNamespace(step=step, inputs=(data(),), state=[layers])
