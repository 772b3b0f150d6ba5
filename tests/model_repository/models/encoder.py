"""An encoder with a hazard that the baseline knows."""

import torch
from torch import nn

from models.layers import Block


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(16) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x)
        if x.abs().max().item() > 1e4:  # overflow
            x = x / 2
        return x.tanh()


def make():
    return Encoder().eval(), (torch.randn(2, 16),)
