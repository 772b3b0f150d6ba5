"""GD202: a result whose size follows a count of Python."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.rules.advice.numbers import Counting
from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

LENGTHS = Variants()


@LENGTHS.before("GD202", "torch.where(places < self.n, values, 0)")
def visible_keys():
    class Visible(Counting):
        def forward(self, x):
            self.n += 1
            return x[:, : self.n].sum(1)

    return Visible(on_gpu=False, first=1), (cuda(4, 32),)


@LENGTHS.after
def visible_keys_masked():
    class Visible(Counting):
        def forward(self, x):
            self.n.add_(1)
            places = torch.arange(32, device="cuda")
            return torch.where(places < self.n, x, 0).sum(1)

    return Visible(on_gpu=True, first=1), (cuda(4, 32),)


@LENGTHS.before("GD202", "or an attention mask")
def attended_keys():
    class Attended(Counting):
        def forward(self, q, k):
            self.n += 1
            keys = k[:, :, : self.n]
            return F.scaled_dot_product_attention(q, keys, keys)

    return Attended(on_gpu=False, first=1), (cuda(1, 2, 1, 8), cuda(1, 2, 32, 8))


@LENGTHS.after
def attended_keys_masked():
    class Attended(Counting):
        def forward(self, q, k):
            self.n.add_(1)
            mask = (torch.arange(32, device="cuda") < self.n).view(1, 1, 1, 32)
            return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    return Attended(on_gpu=True, first=1), (cuda(1, 2, 1, 8), cuda(1, 2, 32, 8))


@LENGTHS.before("GD202", "torch.where(places < (self.n * 2), values, 0)")
def curriculum_length():
    class Curriculum(Counting):
        def forward(self, x):
            self.n += 1
            return x[:, : self.n * 2].square().sum(1)

    return Curriculum(on_gpu=False, first=1), (cuda(4, 32),)


@LENGTHS.after
def curriculum_length_masked():
    class Curriculum(Counting):
        def forward(self, x):
            self.n.add_(1)
            places = torch.arange(32, device="cuda")
            return torch.where(places < self.n * 2, x, 0).square().sum(1)

    return Curriculum(on_gpu=True, first=1), (cuda(4, 32),)


@LENGTHS.before("GD202", "`torch.where(places < n, values, 0)`, with `n` in a GPU tensor")
def growing_positions():
    class Positions(Counting):
        def forward(self, x):
            self.n += 1
            places = torch.arange(self.n, device=x.device)
            return x + places.sum()

    return Positions(on_gpu=False, first=1), (cuda(4, 8),)


@LENGTHS.after
def growing_positions_masked():
    class Positions(Counting):
        def forward(self, x):
            self.n.add_(1)
            places = torch.arange(64, device=x.device)
            return x + torch.where(places < self.n, places, 0).sum()

    return Positions(on_gpu=True, first=1), (cuda(4, 8),)


@LENGTHS.before("GD202", "torch.where(places < self.n, values, 0)")
def progressive_bands():
    class Bands(Counting):
        def forward(self, x):
            self.n += 1
            return x.sin()[..., : self.n].sum(-1)

    return Bands(on_gpu=False, first=1), (cuda(4, 8, 16),)


@LENGTHS.after
def progressive_bands_masked():
    class Bands(Counting):
        def forward(self, x):
            self.n.add_(1)
            places = torch.arange(16, device=x.device)
            return torch.where(places < self.n, x.sin(), 0).sum(-1)

    return Bands(on_gpu=True, first=1), (cuda(4, 8, 16),)
