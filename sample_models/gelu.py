"""GELU written out as a chain of elementwise operators, on one image and on a batch of 32.

Nothing here is unsafe. On one image every kernel is shorter than the work of launching it, so a
graph helps; on 32 images the kernels are long enough to hide their launches, and it does not.

Expect: verdict=safe; rules=none; mode=inference
Expect[large_batch]: verdict=safe; rules=GD301; mode=inference
"""

import math

import torch
from torch import nn


class Gelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cubic = x + 0.044715 * x * x * x
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cubic))


def graphdoctor_target():
    return Gelu().eval(), (torch.randn(1, 3, 224, 224),)


def large_batch():
    return Gelu().eval(), (torch.randn(32, 3, 224, 224),)
