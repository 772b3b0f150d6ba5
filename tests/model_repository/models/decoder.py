"""A decoder that is safe as one graph."""

import torch
from torch import nn

from models.layers import Block


def graphdoctor_target():
    model = nn.Sequential(*(Block(16) for _ in range(3))).eval()
    return model, (torch.randn(2, 16),)
