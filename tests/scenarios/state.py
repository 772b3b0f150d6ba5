"""PyTorch's scenarios about addresses, aliases, streams and state, as small targets."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.steps.making import data


def s08_memory_used_on_a_side_stream():
    def step(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
            y.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        return y * 2

    return step, (data(),)


def s10_memory_on_four_streams():
    def step(x):
        sides, parts = [torch.cuda.Stream() for _ in range(4)], []
        for side in sides:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                parts.append(torch.tanh(x + 1).sum(dim=0))
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        return torch.stack(parts)

    return step, (data(),)


def s11_an_event_of_the_outside_without_external():
    before, event = torch.cuda.Stream(), torch.cuda.Event()

    def step(x):
        if not torch.cuda.is_current_stream_capturing():
            event.record(before)
        torch.cuda.current_stream().wait_event(event)  # <- GD116
        return x + 1

    return step, (data(),)


def s49_input_changed():
    def step(x):
        return x.add_(2)  # <- GD210

    return step, (data(),)


def s50_buffer_changed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4, 8))

        def forward(self, x):
            self.total.add_(x)
            return self.total + x

    return Net().cuda(), (data(),)


def s51_input_as_output_argument():
    def step(x):
        return torch.mul(x, 2, out=x)  # <- GD210

    return step, (data(),)


def s59_static_tensor_bound_anew():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.static_tensor = torch.zeros(4, 8, device="cuda")
            self.linear = nn.Linear(8, 8)

        @torch.no_grad()
        def forward(self, x):
            self.static_tensor = self.static_tensor + 1  # <- GD205
            return self.linear(x) + self.static_tensor

    return Net().cuda(), (data(),)


def s59_bias_replaced():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        @torch.no_grad()
        def forward(self, x):
            y = self.linear(x)
            self.linear.bias = nn.Parameter(self.linear.bias * 0.5)  # <- GD205
            return y

    return Net().cuda(), (data(),)


def s60_buffer_bound_anew():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.zeros(8))

        @torch.no_grad()
        def forward(self, x):
            self.shift = self.shift + x.mean(dim=0)  # <- GD205
            return x + self.shift

    return Net().cuda(), (data(),)


def s61_address_changes_at_each_call():
    held = SimpleNamespace(weight=torch.randn(8, 8, device="cuda"))

    def step(x):
        y = x @ held.weight
        held.weight = held.weight * 0.5  # <- GD205
        return y

    return SimpleNamespace(step=step, inputs=(data(),), state={"held": held})


def s64_outputs_share_memory():
    def step(x):
        y = x + 1
        return y, y[1:], y.view(-1)

    return step, (data(),)


def s64_the_parameter_itself_is_returned():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return x @ self.weight, self.weight

    return Net().cuda(), (data(),)


def s65_outputs_kept_over_calls():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = []

        @torch.no_grad()
        def forward(self, x):
            self.kept.append(x.mean(dim=0))
            return torch.stack(self.kept).sum(dim=0)  # <- GD206

    return Net().cuda(), (data(),)
