"""GD207, GD209 and GD215: random numbers of the CPU, where they go, and seeds set in the step."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F

from tests.rules.advice.outside import given
from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

DRAWS = Variants()


@DRAWS.before("GD207", "x.index_select(1, i + torch.arange(8, ", same=False)
def random_crop():
    def step(x):
        i = random.randint(0, 8)
        return x[:, i : i + 8] * 2

    return step, (cuda(4, 16),)


@DRAWS.after
def random_crop_on_gpu():
    def step(x):
        i = torch.randint(0, 8 + 1, (), device="cuda")
        return x.index_select(1, i + torch.arange(8, device="cuda")) * 2

    return step, (cuda(4, 16),)


@DRAWS.before("GD207", 'torch.randperm(n, device="cuda")[:k]', same=False)
def columns_chosen():
    def step(x):
        columns = np.random.choice(np.arange(16), 4, replace=False)
        return x.index_select(1, torch.from_numpy(columns).cuda()) * 2

    return step, (cuda(4, 16),)


@DRAWS.after
def columns_chosen_on_gpu():
    def step(x):
        return x.index_select(1, torch.randperm(16, device="cuda")[:4]) * 2

    return step, (cuda(4, 16),)


@DRAWS.before("GD207", "torch.where((places >= i) & (places < i + 4), 0, x)", same=False)
def masked_span():
    def step(x):
        x = x.clone()
        i = random.randrange(12)
        x[:, i : i + 4] = 0
        return x

    return step, (cuda(4, 16),)


@DRAWS.after
def masked_span_compared():
    def step(x):
        i = torch.randint(0, 12, (), device="cuda")
        places = torch.arange(16, device="cuda")
        return torch.where((places >= i) & (places < i + 4), 0, x)

    return step, (cuda(4, 16),)


@DRAWS.before("GD207", 'torch.rand((), device="cuda")', same=False)
def stochastic_depth():
    def step(x):
        if random.random() < 0.5:
            return x * 2
        return x + x.sin()

    return step, (cuda(4, 16),)


@DRAWS.after
def stochastic_depth_selected():
    def step(x):
        keep = torch.rand((), device="cuda") < 0.5
        return torch.where(keep, x * 2, x + x.sin())

    return step, (cuda(4, 16),)


@DRAWS.before("GD207", 'torch.empty((), device="cuda").uniform_(0.5, 1.5)', same=False)
def brightness():
    def step(x):
        return x * random.uniform(0.5, 1.5)

    return step, (cuda(4, 16),)


@DRAWS.after
def brightness_on_gpu():
    return lambda x: x * torch.empty((), device="cuda").uniform_(0.5, 1.5), (cuda(4, 16),)


@DRAWS.before("GD104", 'torch.randn(size, device="cuda")', same=False)
def noise_of_numpy():
    return lambda x: x + torch.Tensor(np.random.normal(0, 1, (4, 16))).to(x.device), (cuda(4, 16),)


@DRAWS.after
def noise_of_gpu():
    return lambda x: x + torch.randn((4, 16), device="cuda"), (cuda(4, 16),)


@DRAWS.before("GD207", "drawn.fill_(value)", same=False)
def mixup():
    def step(x, y):
        lam = np.random.beta(0.4, 0.4)
        return lam * x + (1 - lam) * y

    return step, (cuda(4, 16), cuda(4, 16))


@DRAWS.after
def mixup_before_the_step():
    drawn = torch.zeros((), device="cuda")
    drawn.fill_(np.random.beta(0.4, 0.4))
    return lambda x, y: drawn * x + (1 - drawn) * y, (cuda(4, 16), cuda(4, 16))


@DRAWS.before("GD207", 'torch.randint(0, 4, (), device="cuda")', same=False)
def random_level():
    levels = torch.arange(4.0, device="cuda")

    def step(x):
        i = np.random.randint(0, 4)
        return x * levels[i]

    return step, (cuda(4, 16),)


@DRAWS.after
def random_level_on_gpu():
    levels = torch.arange(4.0, device="cuda")

    def step(x):
        i = torch.randint(0, 4, (), device="cuda")
        return x * levels.index_select(0, i.view(1)).squeeze(0)

    return step, (cuda(4, 16),)


@DRAWS.before("GD209", "x.index_select(1, i + torch.arange(8, ", same=False)
def crop_of_item():
    def step(x):
        i = torch.randint(0, 8, (1,)).item()
        return x[:, i : i + 8] * 2

    return step, (cuda(4, 16),)


@DRAWS.after
def crop_of_tensor():
    def step(x):
        i = torch.randint(0, 8, (1,), device=x.device)
        return x.index_select(1, i + torch.arange(8, device="cuda")) * 2

    return step, (cuda(4, 16),)


@DRAWS.before("GD209", "torch.where((places >= i) & (places < i + 4), 0, x)", same=False)
def span_of_item():
    def step(x):
        x = x.clone()
        i = int(torch.randint(12, ()))
        x[:, i : i + 4] = 0
        return x

    return step, (cuda(4, 16),)


@DRAWS.after
def span_of_tensor():
    def step(x):
        i = torch.randint(12, (), device=x.device)
        places = torch.arange(16, device="cuda")
        return torch.where((places >= i) & (places < i + 4), 0, x)

    return step, (cuda(4, 16),)


@DRAWS.before("GD209", "remove the `.item()`", same=False)
def scale_of_item():
    def step(x):
        s = torch.rand(()).item()
        return x * s

    return step, (cuda(4, 16),)


@DRAWS.after
def scale_of_tensor():
    def step(x):
        s = torch.rand((), device=x.device)
        return x * s

    return step, (cuda(4, 16),)


@DRAWS.before("GD209", "Pass device=x.device to the operator", same=False)
def scale_on_cpu():
    return lambda x: x * torch.rand(()), (cuda(4, 16),)


@DRAWS.after
def scale_on_gpu():
    return lambda x: x * torch.rand((), device=x.device), (cuda(4, 16),)


@DRAWS.before("GD209", "torch.where(condition, a, b)", same=False)
def layer_drop():
    def step(x):
        if torch.rand(1) < 0.5:
            return x * 2
        return x + x.sin()

    return step, (cuda(4, 16),)


@DRAWS.after
def layer_drop_selected():
    def step(x):
        keep = torch.rand(1, device=x.device) < 0.5
        return torch.where(keep, x * 2, x + x.sin())

    return step, (cuda(4, 16),)


@DRAWS.before("GD209", "torch.where(places < n, values, 0)", same=False)
def prefix_of_item():
    def step(x):
        n = torch.randint(1, 16, ()).item()
        return x[:, :n].sum(1)

    return step, (cuda(4, 16),)


@DRAWS.after
def prefix_masked():
    def step(x):
        n = torch.randint(1, 16, (), device=x.device)
        places = torch.arange(16, device="cuda")
        return torch.where(places < n, x, 0).sum(1)

    return step, (cuda(4, 16),)


@DRAWS.before("GD215", "Draw the numbers that must repeat once", same=False)
def fixed_noise():
    def step(x):
        torch.manual_seed(0)
        return x + torch.randn(8, 4, device="cuda")

    return given(step)


@DRAWS.after
def fixed_noise_kept():
    torch.manual_seed(0)
    noise = torch.randn(8, 4, device="cuda")
    return given(lambda x: x + noise)


@DRAWS.before("GD215", "Draw the numbers that must repeat once", same=False)
def projection_by_seed():
    """Random features that are drawn again in each call, by a generator with a fixed seed."""
    generator = torch.Generator("cuda")

    def step(x):
        generator.manual_seed(1)
        return x @ torch.randn(4, 6, device="cuda", generator=generator)

    return given(step)


@DRAWS.after
def projection_kept():
    projection = torch.randn(4, 6, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    return given(lambda x: x @ projection)


@DRAWS.before("GD215", "Draw the numbers that must repeat once", same=False)
def repeated_mask():
    """The same dropout mask in each step, as variational dropout and the tests of it want."""

    def step(x):
        torch.cuda.manual_seed(7)
        return F.dropout(x, 0.5)

    return given(step)


@DRAWS.after
def mask_kept():
    torch.cuda.manual_seed(7)
    mask = F.dropout(torch.ones(8, 4, device="cuda"), 0.5)
    return given(lambda x: x * mask)


@DRAWS.before("GD215", "Draw the numbers that must repeat once", same=False)
def seeded_latents():
    def step(x):
        torch.cuda.manual_seed_all(3)
        latents = torch.empty(8, 4, device="cuda").normal_()
        return (x + latents).tanh()

    return given(step)


@DRAWS.after
def latents_kept():
    torch.cuda.manual_seed_all(3)
    latents = torch.empty(8, 4, device="cuda").normal_()
    return given(lambda x: (x + latents).tanh())


@DRAWS.before("GD215", "Draw the numbers that must repeat once", same=False)
def seeded_permutation():
    def step(x):
        torch.manual_seed(5)
        return x[torch.randperm(8, device="cuda")]

    return given(step)


@DRAWS.after
def permutation_kept():
    torch.manual_seed(5)
    permutation = torch.randperm(8, device="cuda")
    return given(lambda x: x[permutation])
