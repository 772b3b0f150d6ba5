"""GD101, GD104, GD105, GD106, GD107 and GD114: values, copies and sizes that the CPU waits for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

DATA = Variants()


class Masked(nn.Module):
    """A mask that no step changes, and its indices."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(8, device="cuda") % 2 == 0)
        self.register_buffer("indices", self.mask.nonzero().squeeze(1))


@DATA.before("GD101", "Compute with the tensor instead of its value")
def normalized_by_item():
    def step(x):
        total = x.abs().sum().item()
        return x / total

    return step, (cuda(8, 4),)


@DATA.after
def normalized_by_tensor():
    def step(x):
        total = x.abs().sum()
        return x / total

    return step, (cuda(8, 4),)


@DATA.before("GD101", "Compute with the tensor instead of its value")
def weighted_by_float():
    def step(x, y):
        weight = float(x.mean())
        return y * weight

    return step, (cuda(8, 4), cuda(8, 4))


@DATA.after
def weighted_by_tensor():
    def step(x, y):
        weight = x.mean()
        return y * weight

    return step, (cuda(8, 4), cuda(8, 4))


@DATA.before("GD105", "Compute them on the GPU, from the tensor before that copy")
def advantages_of_the_cpu():
    def step(values, rewards):
        deltas = (rewards - values).detach().cpu().numpy()
        advantages = []
        advantage = 0.0
        for delta in deltas[::-1]:
            advantage = 0.9 * advantage + delta[0]
            advantages.append([advantage])
        advantages.reverse()
        return values * torch.tensor(advantages, dtype=torch.float, device="cuda")

    return step, (cuda(8, 1), cuda(8, 1))


@DATA.after
def advantages_of_the_gpu():
    def step(values, rewards):
        deltas = (rewards - values).detach()
        advantages = []
        advantage = torch.zeros(1, device="cuda")
        for delta in reversed(deltas.unbind()):
            advantage = 0.9 * advantage + delta
            advantages.append(advantage)
        advantages.reverse()
        return values * torch.stack(advantages)

    return step, (cuda(8, 1), cuda(8, 1))


@DATA.before("GD105", "The numbers are sizes")
def boxes_per_image():
    def step(x, *labels):
        lengths = torch.as_tensor([len(each) for each in labels], device="cuda")
        return (x.sum(1) - lengths).abs().mean()

    return step, (cuda(2, 4), cuda(3), cuda(5))


@DATA.after
def boxes_filled_on_the_gpu():
    def step(x, *labels):
        lengths = torch.stack([torch.full((), len(each), device="cuda") for each in labels])
        return (x.sum(1) - lengths).abs().mean()

    return step, (cuda(2, 4), cuda(3), cuda(5))


@DATA.before("GD105", "torch.stack([a, b])")
def losses_in_a_tensor():
    def step(x, y):
        la = x.square().mean()
        lb = y.abs().mean()
        return torch.tensor([la, lb], device=x.device) * 2

    return step, (cuda(8, 4), cuda(8, 4))


@DATA.after
def losses_stacked():
    def step(x, y):
        la = x.square().mean()
        lb = y.abs().mean()
        return torch.stack([la, lb]) * 2

    return step, (cuda(8, 4), cuda(8, 4))


@DATA.before("GD105", "build the tensor once, in `__init__`")
def image_mean():
    def step(x):
        mean = torch.tensor([0.4, 0.5, 0.6], device=x.device)
        return x - mean

    return step, (cuda(8, 3),)


@DATA.after
def image_mean_built_once():
    mean = torch.tensor([0.4, 0.5, 0.6], device="cuda")
    return lambda x: x - mean, (cuda(8, 3),)


@DATA.before("GD105", "torch.full")
def infinity():
    return lambda x: torch.maximum(x, torch.tensor(-1.0, device=x.device)), (cuda(8, 3),)


@DATA.after
def infinity_filled():
    return lambda x: torch.maximum(x, torch.full((), -1.0, device=x.device)), (cuda(8, 3),)


@DATA.before("GD105", "Its numbers change")
def changing_weights():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = 1.0

        def forward(self, x):
            self.a *= 0.5
            return x * torch.tensor([self.a, 2.0], device=x.device)

    return Weighted(), (cuda(8, 2),)


@DATA.after
def changing_weights_stacked():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.ones((), device="cuda"))
            self.register_buffer("b", torch.full((), 2.0, device="cuda"))

        def forward(self, x):
            self.a.mul_(0.5)
            return x * torch.stack([self.a, self.b])

    return Weighted(), (cuda(8, 2),)


@DATA.before("GD106", "compute its indices once, in `__init__`. Then index with them on line")
def constant_mask():
    class Selected(Masked):
        def forward(self, x):
            return x[self.mask] * 2

    return Selected(), (cuda(8, 4),)


@DATA.after
def constant_indices():
    class Selected(Masked):
        def forward(self, x):
            return x.index_select(0, self.indices) * 2

    return Selected(), (cuda(8, 4),)


@DATA.before("GD106", "`x[:, indices]` in another dimension")
def constant_mask_of_columns():
    class Selected(Masked):
        def forward(self, x):
            return x[:, self.mask].sum(1)

    return Selected(), (cuda(4, 8),)


@DATA.after
def constant_indices_of_columns():
    class Selected(Masked):
        def forward(self, x):
            return x[:, self.indices].sum(1)

    return Selected(), (cuda(4, 8),)


@DATA.before("GD106", "Keep the full shape and mask the values. Replace line")
def masked_mean():
    return lambda x, y: F.mse_loss(x, y, reduction="none")[y > 0].mean(), (cuda(8, 4), cuda(8, 4))


@DATA.after
def masked_mean_weighted():
    def step(x, y):
        mask = y > 0
        return torch.where(mask, (x - y).square(), 0).sum() / mask.sum()

    return step, (cuda(8, 4), cuda(8, 4))


@DATA.before("GD107", "Compute both branches and select with torch.where")
def loss_over_limit():
    def step(x):
        loss = x.square().mean()
        if loss > 1.0:
            loss = loss * 0.5
        return loss

    return step, (cuda(8, 4),)


@DATA.after
def loss_over_limit_selected():
    def step(x):
        loss = x.square().mean()
        return torch.where(loss > 1.0, loss * 0.5, loss)

    return step, (cuda(8, 4),)


@DATA.before("GD107", "Compute both branches and select with torch.where")
def nan_to_zero():
    def step(x):
        return torch.zeros_like(x) if torch.isnan(x).any() else x * 2

    return step, (cuda(8, 4),)


@DATA.after
def nan_to_zero_selected():
    return lambda x: torch.where(torch.isnan(x).any(), torch.zeros_like(x), x * 2), (cuda(8, 4),)


@DATA.before("GD104", "Create the tensor on the GPU")
def positions_of_cpu():
    def step(x):
        places = torch.arange(x.shape[1])
        return x + places.to(x.device)

    return step, (cuda(8, 4),)


@DATA.after
def positions_of_gpu():
    def step(x):
        places = torch.arange(x.shape[1], device=x.device)
        return x + places

    return step, (cuda(8, 4),)


@DATA.before("GD104", "Create the tensor on the GPU")
def causal_mask_of_cpu():
    def step(x):
        mask = torch.ones(4, 4).tril().bool()
        return torch.where(mask.to(x.device), x, 0)

    return step, (cuda(4, 4),)


@DATA.after
def causal_mask_of_gpu():
    def step(x):
        mask = torch.ones(4, 4, device=x.device).tril().bool()
        return torch.where(mask, x, 0)

    return step, (cuda(4, 4),)


@DATA.before("GD104", "keep a constant as a buffer")
def table_of_cpu():
    table = torch.arange(4.0)
    return lambda x: x * table.cuda(), (cuda(8, 4),)


@DATA.after
def table_of_gpu():
    table = torch.arange(4.0).cuda()
    return lambda x: x * table, (cuda(8, 4),)
