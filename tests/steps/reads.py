"""Host reads: values that the host waits for, and what they decide."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from tests.steps.making import data, steps_of


def read_then_branch():
    def step(x):
        total = x.sum().item()  # <- GD107
        y = x * 2
        if total > 0:
            y = y + 1
        return y

    return step, (data(),)


def read_in_a_helper():
    def is_large(x):
        return bool(x.sum() > 0)  # <- GD107

    def step(x):
        if is_large(x):
            return x * 2
        return torch.sin(x)

    return step, (data(),)


def read_as_a_factor():
    def step(x):
        return x / x.abs().max().item()  # <- GD101

    return step, (data(),)


def read_as_a_size():
    def step(x):
        kept = int((x[0] > 0).sum())  # <- GD101
        y = x[:, :kept]
        return (y * 2).sum(dim=1)

    return step, (data(),)


def read_of_a_list():
    def step(x):
        firsts = x[0].tolist()  # <- GD101
        return x + sum(firsts)

    return step, (data(),)


def read_twice_on_a_line():
    def step(x):
        low, high = x.min().item(), x.max().item()  # <- GD101
        return (x - low) / (high - low)

    return step, (data(),)


def early_return():
    def step(x):
        loss = x.square().mean()
        if loss.item() > 1.0:  # <- GD107
            return loss
        return torch.sin(x).sum()

    return step, (data(),)


def loop_until_small():
    def step(x):
        while x.abs().max() > 1:  # <- GD107
            x = x / 2
        return x + 1

    return step, (data(),)


def loop_over_a_count():
    def step(x):
        for _ in range(int((x[0] > 0).sum())):  # <- GD107
            x = torch.sin(x)
        return x

    return step, (data(),)


def assertion():
    def step(x):
        assert torch.isfinite(x).all()  # <- GD107
        return x * 2

    return step, (data(),)


def conditional_expression():
    def step(x):
        return torch.sin(x) if x.sum() > 0 else torch.cos(x)  # <- GD107

    return step, (data(),)


def branch_in_training():
    model = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        y = model[0](x)
        if y.sum().item() > 0:  # <- GD107
            y = model[1](y)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def one_hot():
    def step(x):
        return F.one_hot(x.argmax(dim=1)).sum()  # <- GD101

    return step, (data(),)


def checked_distribution():
    def step(x):
        mean = x.mean(dim=0)
        return torch.distributions.Normal(mean, torch.ones_like(mean)).log_prob(x)  # <- GD101

    return step, (data(),)


def printed_loss():
    def step(x):
        loss = x.square().mean()
        print(loss)  # <- GD102
        return loss

    return step, (data(),)


def formatted_loss():
    def step(x):
        loss = x.square().mean()
        text = f"{loss:.3f}"  # <- GD102
        return loss, text

    return step, (data(),)


def logged_number():
    def step(x):
        loss = x.square().mean()
        print(loss.item())  # <- GD101
        return loss

    return step, (data(),)


def where_without_values():
    def step(x):
        i = torch.where(x > 0)  # <- GD106
        return x[i].sum()

    return step, (data(),)


def metric_read():
    s = SimpleNamespace(t=0.0)

    def step(x):
        loss = x.square().mean()
        s.t += loss.item()  # <- GD101
        return loss

    return steps_of(step, s)


def comprehension():
    def step(x):
        return sum([row for row in x if row.sum() > 0], torch.zeros(8, device=x.device))  # <- GD107

    return step, (data(),)


def larger_of_two():
    def step(x):
        return max(x[0].sum(), x[1].sum())  # <- GD101

    return step, (data(),)


def row_by_a_value():
    def step(x):
        i = x[:, 0].argmax()
        return x[i]  # <- GD101

    return step, (data(),)


def test_over_lines():
    def step(x):
        if (
            x.sum().item()  # <- GD107
            > 0
        ):
            x = x * 2
        return x.sin()

    return step, (data(),)


def branch_on_equality():
    def step(x):
        if torch.equal(x, x.abs()):  # <- GD107
            return x
        return x * 2

    return step, (data(),)


def read_kept_in_an_attribute():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.flag = None

        def forward(self, x):
            self.flag = bool((x.sum() > 0).item())  # <- GD107
            return self.go(x)

        def go(self, x):
            if self.flag:
                return x * 2
            return x.sin()

    return N(), (data(),)


def early_exit_in_each_layer():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = self.fc(x)
            if h.norm() < 2.0:  # <- GD107
                return h
            return torch.sin(h)

    m = nn.Sequential(L(), L(), L()).cuda()
    return m, (data(),)


def experts_that_got_tokens():
    def step(x):
        for e in range(3):
            m = x.argmax(1) == e
            if m.any():  # <- GD107
                x = x + m[:, None] * 1.0
        return x

    return step, (data(),)


def rate_as_a_tensor():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device="cuda"))

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()  # <- GD101
        return loss

    return steps_of(step, model, opt)
