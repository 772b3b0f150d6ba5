"""Copies between host and device, shapes that depend on values, hidden synchronisation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from tests.steps.making import data


def branch_on_a_copy():
    def step(x):
        positive = (x.sum() > 0).cpu()  # <- GD103
        if positive:
            return x * 2
        return torch.sin(x)

    return step, (data(),)


def computed_on_the_host():
    def step(x):
        host = x.detach().cpu()  # <- GD103
        order = host.sum(dim=1).sort().values
        return x + order.to(x.device)[:, None]  # <- GD104

    return step, (data(),)


def round_trip_on_one_line():
    def step(x):
        return x + x.sum(dim=1).cpu().sort().values.cuda()[:, None]  # <- GD103

    return step, (data(),)


def index_by_list():
    def step(x):
        return x[[0, 2]]  # <- GD104

    return step, (data(),)


def index_by_host_tensor():
    rows = torch.tensor([0, 2])

    def step(x):
        return x[rows] * 2  # <- GD104

    return step, (data(),)


def filled_at_an_index():
    rows = torch.tensor([0, 2], device="cuda")

    def step(x):
        y = x.clone()
        y[rows] = 0  # <- GD104
        return y

    return step, (data(),)


def filled_by_a_mask():
    def step(x):
        y = x.clone()
        y[y > 0] = 0.0
        return y.masked_fill(y < -1, 2.0)

    return step, (data(),)


def assigned_by_a_mask():
    def step(x):
        y = x.clone()
        y[y > 0] = torch.zeros(2 * 4, device="cuda")[0]  # <- GD106
        return y

    return step, (data(),)


def array_from_numpy():
    def step(x):
        weights = torch.from_numpy(np.ones(8, dtype=np.float32))
        return x * weights.to(x.device)  # <- GD104

    return step, (data(),)


def number_from_python():
    def step(x):
        return x * torch.tensor(0.5, device=x.device)  # <- GD105

    return step, (data(),)


def new_tensor():
    def step(x):
        return x + x.new_tensor([1.0] * 8)  # <- GD105

    return step, (data(),)


def pinned_input_copied_ahead():
    staging = torch.zeros(8).pin_memory()

    def step(x):
        return x + staging.to(x.device, non_blocking=True)

    return step, (data(),)


def masked_loss():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        y = model(x)
        loss = y[x > 0].square().mean()  # <- GD106
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def nonzero_rows():
    def step(x):
        rows = (x[:, 0] > 0).nonzero().squeeze(1)  # <- GD106
        return x.index_select(0, rows).sum(dim=0) / rows.shape[0]

    return step, (data(),)


def repeated_rows():
    counts = torch.tensor([1, 2, 0, 1], device="cuda")

    def step(x):
        return x.repeat_interleave(counts, dim=0)  # <- GD106

    return step, (data(),)


def repeated_to_a_known_size():
    counts = torch.tensor([1, 2, 0, 1], device="cuda")

    def step(x):
        return x.repeat_interleave(counts, dim=0, output_size=4)

    return step, (data(),)


def inverse():
    def step(x):
        return torch.linalg.inv(x @ x.T + torch.eye(4, device=x.device))  # <- GD114

    return step, (data(),)


def unchecked_inverse():
    def step(x):
        return torch.linalg.inv_ex(x @ x.T + torch.eye(4, device=x.device)).inverse

    return step, (data(),)


def random_normal():
    def step(x):
        return torch.normal(x, torch.ones_like(x))  # <- GD114

    return step, (data(),)


def rows_drawn_on_the_cpu():
    table = data(100, 8)

    def step(x):
        idx = torch.randint(0, 100, (4,))
        return x + table[idx]  # <- GD104

    return step, (data(),)


def sorted_by_numpy():
    def step(x):
        a = x.cpu().numpy()  # <- GD103
        b = torch.from_numpy(np.sort(a))
        return x + b.to(x.device)  # <- GD104

    return step, (data(),)


def timed_by_events():
    def step(x):
        a = torch.cuda.Event(enable_timing=True)
        b = torch.cuda.Event(enable_timing=True)
        a.record()
        y = x * 2
        b.record()
        b.synchronize()  # <- GD108
        return y

    return step, (data(),)
