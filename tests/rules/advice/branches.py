"""GD201, GD214 and GD217: branches on Python state, and on whether the step is captured."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.advice.numbers import Counting
from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

BRANCHES = Variants()


@BRANCHES.before("GD201", "`x.copy_(torch.where(self.n % 2 == 0, new, x))`")
def delayed_policy_update():
    """TD3: the actor and the targets move in every second update."""

    class Learner(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.register_buffer("target", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.n += 1
            new = x.mean(0)
            if self.n % 2 == 0:
                self.target.mul_(0.9).add_(new, alpha=0.1)
            return new - self.target

    return Learner(), (cuda(8, 4),)


@BRANCHES.after
def delayed_policy_update_selected():
    class Learner(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("target", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.n.add_(1)
            new = x.mean(0)
            moved = self.target.mul(0.9).add(new, alpha=0.1)
            self.target.copy_(torch.where(self.n % 2 == 0, moved, self.target))
            return new - self.target

    return Learner(), (cuda(8, 4),)


@BRANCHES.before("GD201", "`torch.where(self.n % 2 == 0, a, b)`")
def lazy_regularization():
    """StyleGAN2: the penalty is added in each k-th step only."""

    class Critic(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.weight = torch.ones(4, device="cuda")

        def forward(self, x):
            loss = (x @ self.weight).mean()
            if self.n % 2 == 0:
                loss = loss + 10 * self.weight.square().sum()
            self.n += 1
            return loss

    return Critic(), (cuda(8, 4),)


@BRANCHES.after
def lazy_regularization_selected():
    class Critic(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.weight = torch.ones(4, device="cuda")

        def forward(self, x):
            loss = (x @ self.weight).mean()
            loss = torch.where(self.n % 2 == 0, loss + 10 * self.weight.square().sum(), loss)
            self.n.add_(1)
            return loss

    return Critic(), (cuda(8, 4),)


@BRANCHES.before("GD201", "`x.copy_(torch.where(self.n % 2 == 0, new, x))`")
def reused_features():
    """DeepCache: the deep features are computed in every second denoising step."""

    class Cached(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.register_buffer("deep", torch.zeros(8, 4, device="cuda"))

        def forward(self, x):
            if self.n % 2 == 0:
                self.deep.copy_(x.tanh())
            self.n += 1
            return x + self.deep

    return Cached(), (cuda(8, 4),)


@BRANCHES.after
def reused_features_selected():
    class Cached(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("deep", torch.zeros(8, 4, device="cuda"))

        def forward(self, x):
            self.deep.copy_(torch.where(self.n % 2 == 0, x.tanh(), self.deep))
            self.n.add_(1)
            return x + self.deep

    return Cached(), (cuda(8, 4),)


@BRANCHES.before("GD201", "`torch.where(self.flip, a, b)`")
def alternating_sign():
    class Antithetic(nn.Module):
        def __init__(self):
            super().__init__()
            self.flip = False

        def forward(self, x):
            self.flip = not self.flip
            return x.sin() if self.flip else x.cos()

    return Antithetic(), (cuda(8, 4),)


@BRANCHES.after
def alternating_sign_selected():
    class Antithetic(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("flip", torch.tensor(False, device="cuda"))

        def forward(self, x):
            self.flip.logical_not_()
            return torch.where(self.flip, x.sin(), x.cos())

    return Antithetic(), (cuda(8, 4),)


def accumulating(*, calls: int) -> object:
    """`optimizer.step()` in every second call of the step, or a step of two calls."""
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.weight.grad, model.bias.grad = (
        torch.zeros_like(model.weight),
        torch.zeros_like(model.bias),
    )
    seen = [0]

    def step(x):
        loss = model(x).square().mean() / 2
        loss.backward()
        seen[0] += 1
        if seen[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def both(x, y):
        losses = []
        for part in (x, y):
            loss = model(part).square().mean() / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return losses

    return SimpleNamespace(
        step=step if calls == 1 else both, inputs=(cuda(8, 4),) * calls, state=[model, optimizer]
    )


BRANCHES.before("GD201", "make one step of as many calls", same=False)(
    lambda: accumulating(calls=1)
)
BRANCHES.after(lambda: accumulating(calls=2))


@BRANCHES.before("GD217", "`torch.where(self.n > 100, a, b)`")
def gradual_warmup():
    class Warmed(Counting):
        def forward(self, x):
            self.n += 1
            if self.n > 100:
                return x.tanh()
            return x * 0.5

    return Warmed(on_gpu=False), (cuda(8, 4),)


@BRANCHES.after
def gradual_warmup_selected():
    class Warmed(Counting):
        def forward(self, x):
            self.n.add_(1)
            return torch.where(self.n > 100, x.tanh(), x * 0.5)

    return Warmed(on_gpu=True), (cuda(8, 4),)


@BRANCHES.before("GD217", "`x.copy_(torch.where(self.n % 50 == 0, new, x))`")
def codebook_reset():
    """A vector quantizer that replaces its dead entries in each 50th call."""

    class Quantizer(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.register_buffer("used", torch.zeros(8, device="cuda"))

        def forward(self, x):
            self.used.add_(x.mean(0))
            self.n += 1
            if self.n % 50 == 0:
                self.used.zero_()
            return x + self.used

    return Quantizer(), (cuda(4, 8),)


@BRANCHES.after
def codebook_reset_selected():
    class Quantizer(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("used", torch.zeros(8, device="cuda"))

        def forward(self, x):
            self.used.add_(x.mean(0))
            self.n.add_(1)
            self.used.copy_(torch.where(self.n % 50 == 0, 0, self.used))
            return x + self.used

    return Quantizer(), (cuda(4, 8),)


@BRANCHES.before("GD217", "`torch.where(condition, a, b)` instead of `a if condition else b`")
def adversarial_start():
    """VQGAN: `disc_factor` is 0 until `disc_start` steps are over."""

    class Losses(Counting):
        def forward(self, x, fake):
            factor = 1.0 if self.n >= 1000 else 0.0
            self.n += 1
            return x.abs().mean() - factor * fake.mean()

    return Losses(on_gpu=False), (cuda(8, 4), cuda(8, 4))


@BRANCHES.after
def adversarial_start_selected():
    class Losses(Counting):
        def forward(self, x, fake):
            factor = torch.where(self.n >= 1000, 1.0, 0.0)
            self.n.add_(1)
            return x.abs().mean() - factor * fake.mean()

    return Losses(on_gpu=True), (cuda(8, 4), cuda(8, 4))


@BRANCHES.before("GD217", "`torch.clamp` instead of `min` and `max`")
def coarse_to_fine():
    """BARF, Nerfies: the number of frequencies grows with the count of steps."""

    class Encoded(Counting):
        def forward(self, x):
            self.n += 1
            levels = min(4, 1 + self.n // 100)
            return sum((x * 2.0**level).sin() for level in range(levels))

    return Encoded(on_gpu=False), (cuda(8, 4),)


@BRANCHES.after
def coarse_to_fine_selected():
    class Encoded(Counting):
        def forward(self, x):
            self.n.add_(1)
            levels = torch.clamp(1 + self.n // 100, max=4)
            total = 0
            for level in range(4):
                total = total + torch.where(level < levels, (x * 2.0**level).sin(), 0)
            return total

    return Encoded(on_gpu=True), (cuda(8, 4),)


@BRANCHES.before("GD217", "Move `if self.n % 100 == 0:` with its body after the step")
def hard_target_update():
    """DQN: the target network takes the weights of the network in each 100th step."""

    class Learner(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.online, self.target = nn.Linear(4, 2).cuda(), nn.Linear(4, 2).cuda()

        @torch.no_grad()
        def forward(self, x):
            self.n += 1
            if self.n % 100 == 0:
                self.target.load_state_dict(self.online.state_dict())
            return self.target(x)

    return Learner(), (cuda(8, 4),)


@BRANCHES.after
def hard_target_update_outside():
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.online, self.target = nn.Linear(4, 2).cuda(), nn.Linear(4, 2).cuda()

        @torch.no_grad()
        def forward(self, x):
            return self.target(x)

    return Learner(), (cuda(8, 4),)


@BRANCHES.before("GD214", "take the captured branch in eager too", same=False)
def cheaper_norm_when_captured():
    def step(x):
        if torch.cuda.is_current_stream_capturing():
            return x / 4
        return x / x.norm()

    return step, (cuda(8, 4),)


@BRANCHES.after
def same_norm():
    return lambda x: x / x.norm(), (cuda(8, 4),)


@BRANCHES.before("GD214", "take the captured branch in eager too", same=False)
def no_clipping_when_captured():
    """A training step that clips where it may read the norm."""

    def step(g):
        norm = g.norm()
        if not torch.cuda.is_current_stream_capturing() and norm > 1.0:
            g = g / norm
        return g * 0.1

    return step, (cuda(8, 4),)


@BRANCHES.after
def clipping_by_clamp():
    return lambda g: g * (1.0 / g.norm()).clamp(max=1.0) * 0.1, (cuda(8, 4),)


@BRANCHES.before("GD214", "take the captured branch in eager too", same=False)
def capacity_when_captured():
    """A mixture of experts that drops tokens beyond a fixed capacity, only in a graph."""

    def step(x):
        n = 4 if torch.cuda.is_current_stream_capturing() else 8
        return torch.cat([x[:n].tanh(), x[n:]])

    return step, (cuda(8, 4),)


@BRANCHES.after
def capacity_always():
    return lambda x: torch.cat([x[:4].tanh(), x[4:]]), (cuda(8, 4),)


@BRANCHES.before("GD214", "take the captured branch in eager too", same=False)
def full_length_when_captured():
    """Attention over the whole cache in a graph, and over what is filled in eager."""

    def step(q, cache):
        n = 8 if torch.cuda.is_current_stream_capturing() else 5
        scores = q @ cache[:n].T
        return scores.softmax(1) @ cache[:n]

    return step, (cuda(2, 4), cuda(8, 4))


@BRANCHES.after
def full_length_always():
    return lambda q, cache: (q @ cache.T).softmax(1) @ cache, (cuda(2, 4), cuda(8, 4))


@BRANCHES.before("GD214", "take the captured branch in eager too", same=False)
def auxiliary_loss_when_eager():
    def step(x):
        loss = x.square().mean()
        if not torch.cuda.is_current_stream_capturing():
            loss = loss + 0.1 * x.abs().mean()
        return loss

    return step, (cuda(8, 4),)


@BRANCHES.after
def auxiliary_loss_always():
    return lambda x: x.square().mean() + 0.1 * x.abs().mean(), (cuda(8, 4),)
