"""GD203: a counter, a position or a schedule in Python."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

NUMBERS = Variants()


def place(*start: int) -> torch.Tensor:
    return torch.tensor(start or 0, device="cuda")


class Counting(nn.Module):
    """A module with a count of its calls, on the CPU or on the GPU."""

    def __init__(self, *, on_gpu: bool, first: float = 0) -> None:
        super().__init__()
        if on_gpu:
            self.register_buffer("n", torch.tensor(first, device="cuda"))
        else:
            self.n = first


@NUMBERS.before("GD203", "self.queue.index_copy_(0, self.n + torch.arange(8, ")
def moco_queue():
    class Queue(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.register_buffer("queue", torch.zeros(64, 4, device="cuda"))

        def forward(self, keys):
            self.queue[self.n : self.n + 8] = keys
            self.n = (self.n + 8) % 64
            return keys @ self.queue.T

    return Queue(), (cuda(8, 4),)


@NUMBERS.after
def moco_queue_on_gpu():
    class Queue(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("queue", torch.zeros(64, 4, device="cuda"))

        def forward(self, keys):
            self.queue.index_copy_(0, self.n + torch.arange(8, device="cuda"), keys)
            self.n.copy_((self.n + 8) % 64)
            return keys @ self.queue.T

    return Queue(), (cuda(8, 4),)


@NUMBERS.before("GD203", "self.keys.index_copy_(1, self.n.view(1), k.unsqueeze(1))")
def decode_position():
    class Cache(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.register_buffer("keys", torch.zeros(2, 32, 4, device="cuda"))

        def forward(self, k):
            self.keys[:, self.n] = k
            self.n += 1
            return self.keys.sum(1)

    return Cache(), (cuda(2, 4),)


@NUMBERS.after
def decode_position_on_gpu():
    class Cache(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("keys", torch.zeros(2, 32, 4, device="cuda"))

        def forward(self, k):
            self.keys.index_copy_(1, self.n.view(1), k.unsqueeze(1))
            self.n.add_(1)
            return self.keys.sum(1)

    return Cache(), (cuda(2, 4),)


@NUMBERS.before("GD203", "self.table.index_select(0, self.n.view(1)).squeeze(0)")
def position_embedding():
    class Embedded(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.table = torch.arange(256.0, device="cuda").view(64, 4)

        def forward(self, x):
            y = x + self.table[self.n]
            self.n += 1
            return y

    return Embedded(), (cuda(2, 4),)


@NUMBERS.after
def position_embedding_on_gpu():
    class Embedded(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.table = torch.arange(256.0, device="cuda").view(64, 4)

        def forward(self, x):
            y = x + self.table.index_select(0, self.n.view(1)).squeeze(0)
            self.n.add_(1)
            return y

    return Embedded(), (cuda(2, 4),)


@NUMBERS.before("GD203", "self.rope.index_select(0, self.n + torch.arange(2, ")
def rope_window():
    class Rope(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.rope = torch.arange(256.0, device="cuda").view(64, 4)

        def forward(self, x):
            y = x * self.rope[self.n : self.n + 2]
            self.n += 2
            return y

    return Rope(), (cuda(2, 4),)


@NUMBERS.after
def rope_window_on_gpu():
    class Rope(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.rope = torch.arange(256.0, device="cuda").view(64, 4)

        def forward(self, x):
            y = x * self.rope.index_select(0, self.n + torch.arange(2, device="cuda"))
            self.n.add_(2)
            return y

    return Rope(), (cuda(2, 4),)


@NUMBERS.before("GD203", "0-d GPU tensor")
def kl_annealing():
    class Annealed(Counting):
        def forward(self, x):
            self.n += 0.25
            return x.square().mean() * self.n

    return Annealed(on_gpu=False, first=0.0), (cuda(8, 4),)


@NUMBERS.after
def kl_annealing_on_gpu():
    class Annealed(Counting):
        def forward(self, x):
            self.n.add_(0.25)
            return x.square().mean() * self.n

    return Annealed(on_gpu=True, first=0.0), (cuda(8, 4),)


@NUMBERS.before("GD203", "running_mean.lerp_(x.mean(dims), momentum)")
def batch_norm_momentum():
    class Norm(Counting):
        def __init__(self):
            super().__init__(on_gpu=False, first=1.0)
            self.bn = nn.BatchNorm1d(4).cuda()

        def forward(self, x):
            self.n *= 0.5
            self.bn.momentum = self.n
            return self.bn(x), self.bn.running_mean * 1

    return Norm(), (cuda(8, 4),)


@NUMBERS.after
def batch_norm_momentum_on_gpu():
    class Norm(Counting):
        def __init__(self):
            super().__init__(on_gpu=True, first=1.0)
            self.bn = nn.BatchNorm1d(4).cuda()

        def forward(self, x):
            self.n.mul_(0.5)
            with torch.no_grad():
                self.bn.running_mean.lerp_(x.mean(0), self.n)
                self.bn.running_var.lerp_(x.var(0), self.n)
            y = F.batch_norm(x, None, None, self.bn.weight, self.bn.bias, training=True)
            return y, self.bn.running_mean * 1

    return Norm(), (cuda(8, 4),)


@NUMBERS.before("GD203", "F.pad(torch.ones_like(x), pad) > 0")
def pad_value():
    class Padded(Counting):
        def forward(self, x):
            self.n += 1.0
            return F.pad(x, (1, 1), value=self.n)

    return Padded(on_gpu=False, first=0.0), (cuda(8, 4),)


@NUMBERS.after
def pad_value_on_gpu():
    class Padded(Counting):
        def forward(self, x):
            self.n.add_(1.0)
            inside = F.pad(torch.ones_like(x), (1, 1)) > 0
            return torch.where(inside, F.pad(x, (1, 1)), self.n)

    return Padded(on_gpu=True, first=0.0), (cuda(8, 4),)


@NUMBERS.before("GD203", "x.add_(scale * y)")
def noise_scale():
    class Noisy(Counting):
        def forward(self, x, y):
            self.n *= 0.5
            return x.add(y, alpha=self.n)

    return Noisy(on_gpu=False, first=1.0), (cuda(8, 4), cuda(8, 4))


@NUMBERS.after
def noise_scale_on_gpu():
    class Noisy(Counting):
        def forward(self, x, y):
            self.n.mul_(0.5)
            return x + self.n * y

    return Noisy(on_gpu=True, first=1.0), (cuda(8, 4), cuda(8, 4))


@NUMBERS.before("GD203", "x + value * a * b")
def annealed_product():
    class Product(Counting):
        def forward(self, x, a):
            self.n *= 0.5
            return torch.addcmul(x, a, a, value=self.n)

    return Product(on_gpu=False, first=1.0), (cuda(8, 4), cuda(8, 4))


@NUMBERS.after
def annealed_product_on_gpu():
    class Product(Counting):
        def forward(self, x, a):
            self.n.mul_(0.5)
            return x + self.n * a * a

    return Product(on_gpu=True, first=1.0), (cuda(8, 4), cuda(8, 4))


@NUMBERS.before("GD203", "torch.where(x > 0, x, slope * x)")
def annealed_slope():
    class Leaky(Counting):
        def forward(self, x):
            self.n *= 0.5
            return F.leaky_relu(x, self.n)

    return Leaky(on_gpu=False, first=1.0), (cuda(8, 4),)


@NUMBERS.after
def annealed_slope_on_gpu():
    class Leaky(Counting):
        def forward(self, x):
            self.n.mul_(0.5)
            return torch.where(x > 0, x, self.n * x)

    return Leaky(on_gpu=True, first=1.0), (cuda(8, 4),)


@NUMBERS.before("GD203", "torch.where(mask, value, x)")
def mask_value():
    class Masked(Counting):
        def forward(self, x):
            self.n -= 1.0
            return x.masked_fill(x > 0, self.n)

    return Masked(on_gpu=False, first=0.0), (cuda(8, 4),)


@NUMBERS.after
def mask_value_on_gpu():
    class Masked(Counting):
        def forward(self, x):
            self.n.sub_(1.0)
            return torch.where(x > 0, self.n, x)

    return Masked(on_gpu=True, first=0.0), (cuda(8, 4),)


@NUMBERS.before("GD203", "(torch.arange(n, device=x.device) - shift) % n")
def moving_window():
    class Rolled(Counting):
        def forward(self, x):
            self.n += 1
            return torch.roll(x, self.n, 1)

    return Rolled(on_gpu=False), (cuda(8, 16),)


@NUMBERS.after
def moving_window_on_gpu():
    class Rolled(Counting):
        def forward(self, x):
            self.n.add_(1)
            return x.index_select(1, (torch.arange(16, device=x.device) - self.n) % 16)

    return Rolled(on_gpu=True), (cuda(8, 16),)


@NUMBERS.before("GD203", "start + torch.arange(n, device=x.device)")
def position_ids():
    class Positions(Counting):
        def forward(self, x):
            self.n += 4
            return x + torch.arange(self.n, self.n + 4, device=x.device)

    return Positions(on_gpu=False), (cuda(8, 4),)


@NUMBERS.after
def position_ids_on_gpu():
    class Positions(Counting):
        def forward(self, x):
            self.n.add_(4)
            return x + (self.n + torch.arange(4, device=x.device))

    return Positions(on_gpu=True), (cuda(8, 4),)


@NUMBERS.before("GD203", "value.expand(")
def timestep_filled():
    class Denoiser(Counting):
        def forward(self, x):
            self.n += 1.0
            t = torch.full((8, 1), self.n, device=x.device)
            return x * t

    return Denoiser(on_gpu=False, first=0.0), (cuda(8, 4),)


@NUMBERS.after
def timestep_expanded():
    class Denoiser(Counting):
        def forward(self, x):
            self.n.add_(1.0)
            t = self.n.expand(8, 1)
            return x * t

    return Denoiser(on_gpu=True, first=0.0), (cuda(8, 4),)


@NUMBERS.before("GD203", "(1 - s) * F.cross_entropy(x, y)")
def label_smoothing():
    class Smoothed(Counting):
        def forward(self, x, y):
            self.n *= 0.5
            return F.cross_entropy(x, y, label_smoothing=self.n)

    return Smoothed(on_gpu=False, first=0.4), (cuda(8, 4), place(*range(4), *range(4)))


@NUMBERS.after
def label_smoothing_written_out():
    class Smoothed(Counting):
        def forward(self, x, y):
            self.n.mul_(0.5)
            return (1 - self.n) * F.cross_entropy(x, y) - self.n * x.log_softmax(1).mean()

    return Smoothed(on_gpu=True, first=0.4), (cuda(8, 4), place(*range(4), *range(4)))


@NUMBERS.before("GD203", "(torch.rand_like(x) >= p) / (1 - p)", same=False)
def scheduled_dropout():
    class Dropped(Counting):
        def forward(self, x):
            self.n *= 0.5
            return F.dropout(x, self.n, training=True)

    return Dropped(on_gpu=False, first=0.8), (cuda(8, 4),)


@NUMBERS.after
def scheduled_dropout_written_out():
    class Dropped(Counting):
        def forward(self, x):
            self.n.mul_(0.5)
            return x * (torch.rand_like(x) >= self.n) / (1 - self.n)

    return Dropped(on_gpu=True, first=0.8), (cuda(8, 4),)


@NUMBERS.before("GD203", "pass scale=1.0")
def attention_temperature():
    class Attention(Counting):
        def forward(self, q, k, v):
            self.n *= 0.5
            return F.scaled_dot_product_attention(q, k, v, scale=self.n)

    return Attention(on_gpu=False, first=1.0), (
        cuda(1, 2, 4, 8),
        cuda(1, 2, 4, 8),
        cuda(1, 2, 4, 8),
    )


@NUMBERS.after
def attention_temperature_in_query():
    class Attention(Counting):
        def forward(self, q, k, v):
            self.n.mul_(0.5)
            return F.scaled_dot_product_attention(q * self.n, k, v, scale=1.0)

    return Attention(on_gpu=True, first=1.0), (cuda(1, 2, 4, 8), cuda(1, 2, 4, 8), cuda(1, 2, 4, 8))


@NUMBERS.before("GD203", "torch._foreach_add_(xs, torch._foreach_mul(ys, scale))")
def ema_warmup():
    class Ema(Counting):
        def __init__(self):
            super().__init__(on_gpu=False, first=1.0)
            self.register_buffer("average", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.n *= 0.5
            torch._foreach_add_([self.average], [x.mean(0)], alpha=self.n)
            return self.average * 1

    return Ema(), (cuda(8, 4),)


@NUMBERS.after
def ema_warmup_on_gpu():
    class Ema(Counting):
        def __init__(self):
            super().__init__(on_gpu=True, first=1.0)
            self.register_buffer("average", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.n.mul_(0.5)
            torch._foreach_add_([self.average], torch._foreach_mul([x.mean(0)], self.n))
            return self.average * 1

    return Ema(), (cuda(8, 4),)
