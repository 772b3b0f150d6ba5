"""GD205, GD206 and GD212: state that each step replaces, or extends."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

STATE = Variants()


class Holding(nn.Module):
    """A module with two buffers of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(8, 4, device="cuda"))
        self.register_buffer("other", torch.ones(8, 4, device="cuda"))
        self.cell = nn.GRUCell(4, 4).cuda()
        self.lstm = nn.LSTMCell(4, 4).cuda()


@STATE.before("GD205", "self.h.copy_(0.9 * self.h + 0.1 * x)")
def moving_average():
    class Average(Holding):
        def forward(self, x):
            self.h = 0.9 * self.h + 0.1 * x
            return x - self.h

    return Average(), (cuda(8, 4),)


@STATE.after
def moving_average_in_place():
    class Average(Holding):
        def forward(self, x):
            self.h.copy_(0.9 * self.h + 0.1 * x)
            return x - self.h

    return Average(), (cuda(8, 4),)


@STATE.before("GD205", "old = self.h.clone(); self.h.copy_(self.other); self.other.copy_(old)")
def swapped_buffers():
    class Swapped(Holding):
        def forward(self, x):
            y = x + self.h
            self.other.add_(x)
            self.h, self.other = self.other, self.h
            return y

    return Swapped(), (cuda(8, 4),)


@STATE.after
def swapped_contents():
    class Swapped(Holding):
        def forward(self, x):
            y = x + self.h
            self.other.add_(x)
            old = self.h.clone()
            self.h.copy_(self.other)
            self.other.copy_(old)
            return y

    return Swapped(), (cuda(8, 4),)


@STATE.before("GD205", "self.h.copy_(h.detach())")
def hidden_state():
    class Recurrent(Holding):
        def forward(self, x):
            h = self.cell(x, self.h)
            self.h = h.detach()
            return h * 2

    return Recurrent(), (cuda(8, 4),)


@STATE.after
def hidden_state_in_place():
    class Recurrent(Holding):
        def forward(self, x):
            h = self.cell(x, self.h)
            self.h.copy_(h.detach())
            return h * 2

    return Recurrent(), (cuda(8, 4),)


@STATE.before("GD205", "new_h, new_other = self.lstm(x, (self.h, self.other)); self.h.copy_(new_h)")
def lstm_states():
    class Recurrent(Holding):
        @torch.no_grad()
        def forward(self, x):
            self.h, self.other = self.lstm(x, (self.h, self.other))
            return self.h * 2

    return Recurrent(), (cuda(8, 4),)


@STATE.after
def lstm_states_in_place():
    class Recurrent(Holding):
        @torch.no_grad()
        def forward(self, x):
            new_h, new_other = self.lstm(x, (self.h, self.other))
            self.h.copy_(new_h)
            self.other.copy_(new_other)
            return self.h * 2

    return Recurrent(), (cuda(8, 4),)


@STATE.before("GD205", "self.h.copy_(x.clone())")
def previous_frame():
    class Difference(Holding):
        def forward(self, x):
            y = x - self.h
            self.h = x.clone()
            return y

    return Difference(), (cuda(8, 4),)


@STATE.after
def previous_frame_in_place():
    class Difference(Holding):
        def forward(self, x):
            y = x - self.h
            self.h.copy_(x.clone())
            return y

    return Difference(), (cuda(8, 4),)


@STATE.before("GD205", "self.h.copy_(self.h.roll(1, 0) + x)")
def delay_line():
    class Delay(Holding):
        def forward(self, x):
            self.h = self.h.roll(1, 0) + x
            return self.h.mean(0)

    return Delay(), (cuda(8, 4),)


@STATE.after
def delay_line_in_place():
    class Delay(Holding):
        def forward(self, x):
            self.h.copy_(self.h.roll(1, 0) + x)
            return self.h.mean(0)

    return Delay(), (cuda(8, 4),)


class Cached(nn.Module):
    """A cache that grows along a dimension, or one of full size with a position."""

    def __init__(self, *shape: int, first: int = -1) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(*shape, device="cuda"))
        if first >= 0:
            self.register_buffer("position", torch.tensor([first], device="cuda"))

    def write(self, dim: int, new: torch.Tensor) -> torch.Tensor:
        """Whether each entry holds something, after the new ones are in."""
        n = new.shape[dim]
        self.keys.index_copy_(dim, self.position + torch.arange(n, device="cuda"), new)
        self.position.add_(n)
        return torch.arange(self.keys.shape[dim], device="cuda") < self.position


@STATE.before("GD206", "self.keys.index_copy_(1, position, k)")
def key_cache():
    class Cache(Cached):
        def forward(self, k):
            self.keys = torch.cat([self.keys, k], dim=1)
            return self.keys.sum(1)

    return Cache(4, 1, 8), (cuda(4, 1, 8),)


@STATE.after
def key_cache_preallocated():
    class Cache(Cached):
        def forward(self, k):
            self.write(1, k)
            return self.keys.sum(1)

    return Cache(4, 32, 8, first=1), (cuda(4, 1, 8),)


@STATE.before("GD206", "self.keys.index_copy_(0, position + torch.arange(3, ")
def memory_bank():
    class Bank(Cached):
        def forward(self, x):
            self.keys = torch.cat((self.keys, x))
            return (x @ self.keys.T).sum(1)

    return Bank(1, 8), (cuda(3, 8),)


@STATE.after
def memory_bank_preallocated():
    class Bank(Cached):
        def forward(self, x):
            self.write(0, x)
            return (x @ self.keys.T).sum(1)

    return Bank(64, 8, first=1), (cuda(3, 8),)


@STATE.before("GD206", "Mask the entries beyond `position`")
def attended_cache():
    class Attended(Cached):
        def forward(self, q):
            self.keys = torch.cat([self.keys, q], dim=1)
            return (q @ self.keys.transpose(1, 2)).softmax(-1) @ self.keys

    return Attended(2, 1, 8), (cuda(2, 1, 8),)


@STATE.after
def attended_cache_masked():
    class Attended(Cached):
        def forward(self, q):
            held = self.write(1, q)
            scores = (q @ self.keys.transpose(1, 2)).masked_fill(~held, float("-inf"))
            return scores.softmax(-1) @ self.keys

    return Attended(2, 32, 8, first=1), (cuda(2, 1, 8),)


@STATE.before("GD206", "entries.index_copy_(0, position, new.unsqueeze(0))")
def listed_features():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.entries = []

        def forward(self, x):
            self.entries.append(x.mean(0))
            return torch.stack(self.entries).sum(0)

    return Listed(), (cuda(3, 8),)


@STATE.after
def listed_features_preallocated():
    class Listed(Cached):
        def forward(self, x):
            self.write(0, x.mean(0).unsqueeze(0))
            return self.keys.sum(0)

    return Listed(64, 8, first=0), (cuda(3, 8),)


@STATE.before("GD206", "self.keys.index_copy_(2, position, k)")
def cache_of_heads():
    class Heads(Cached):
        def forward(self, k):
            self.keys = torch.cat([self.keys, k], dim=2)
            return self.keys.square().sum(2)

    return Heads(1, 2, 1, 4), (cuda(1, 2, 1, 4),)


@STATE.after
def cache_of_heads_preallocated():
    class Heads(Cached):
        def forward(self, k):
            self.write(2, k)
            return self.keys.square().sum(2)

    return Heads(1, 2, 32, 4, first=1), (cuda(1, 2, 1, 4),)


def past_of(*, dim: int, full: int = 0) -> object:
    """A decode step that gets the cache as an argument: one that grows, or one of full size."""
    lengths = count(1)

    def grown(new, past):
        keys = torch.cat([past, new], dim=1)
        return keys.sum(1)

    def written(new, past, position):
        past.index_copy_(1, position, new)
        held = torch.arange(past.shape[1], device=past.device).view(1, -1, 1) <= position
        return torch.where(held, past, 0).sum(1)

    if full:
        past, position = torch.zeros(2, full, 4, device="cuda"), torch.tensor([3], device="cuda")
        return SimpleNamespace(
            step=lambda new: written(new, past, position),
            inputs=(cuda(2, 1, 4),),
            state={"past": past},
        )
    return SimpleNamespace(step=grown, inputs=lambda: (cuda(2, 1, 4), cuda(2, next(lengths), 4)))


STATE.before("GD212", "past.index_copy_(1, position, new)", same=False)(lambda: past_of(dim=1))
STATE.after(lambda: past_of(dim=1, full=16))


def sized(step, *lengths: int, mask: bool = False) -> object:
    """A step whose first input has another length each time, or the greatest one and a mask."""
    turns = count()

    def inputs():
        n = lengths[next(turns) % len(lengths)]
        if not mask:
            return (cuda(4, n),)
        return cuda(4, max(lengths)), torch.arange(max(lengths), device="cuda") < n

    return SimpleNamespace(step=step, inputs=inputs)


@STATE.before("GD212", "Pad inputs to a few fixed sizes, with a mask", same=False)
def ragged_mean():
    return sized(lambda x: x.mean(1), 3, 7, 5)


@STATE.after
def padded_mean():
    return sized(lambda x, m: torch.where(m, x, 0).sum(1) / m.sum(), 3, 7, 5, mask=True)


@STATE.before("GD212", "Pad inputs to a few fixed sizes, with a mask", same=False)
def ragged_maximum():
    return sized(lambda x: x.amax(1), 3, 7, 5)


@STATE.after
def padded_maximum():
    return sized(lambda x, m: torch.where(m, x, float("-inf")).amax(1), 3, 7, 5, mask=True)


@STATE.before("GD212", "Pad inputs to a few fixed sizes, with a mask", same=False)
def ragged_softmax():
    return sized(lambda x: x.softmax(1).square().sum(1), 3, 7, 5)


@STATE.after
def padded_softmax():
    def step(x, m):
        return x.masked_fill(~m, float("-inf")).softmax(1).square().sum(1)

    return sized(step, 3, 7, 5, mask=True)


@STATE.before("GD212", "Pad inputs to a few fixed sizes, with a mask", same=False)
def ragged_loss():
    return sized(lambda x: (x - 1).square().mean(), 3, 7, 5)


@STATE.after
def padded_loss():
    def step(x, m):
        return torch.where(m, (x - 1).square(), 0).sum() / (m.sum() * len(x))

    return sized(step, 3, 7, 5, mask=True)


class Clipped:
    """The clipped gradient of a weight, which the next step takes up with its momentum and lets go."""

    def __init__(self, *, in_place: bool) -> None:
        self.weight = torch.ones(4, device="cuda")
        self.summed, self.in_place = torch.zeros(4, device="cuda"), in_place

    def __call__(self, x):
        grad = self.summed * 0.9 + (x * self.weight).clamp(-1, 1).sum(0)
        if self.in_place:
            self.summed.copy_(grad)
        else:
            self.summed = None
            self.summed = grad
        return grad


@STATE.before("GD205", "`self.summed.copy_(grad)`")
def sum_released_and_bound() -> object:
    return Clipped(in_place=False), (cuda(8, 4),)


@STATE.after
def sum_in_place() -> object:
    return Clipped(in_place=True), (cuda(8, 4),)
