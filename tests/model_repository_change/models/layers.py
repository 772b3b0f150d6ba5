"""What the models of this repository share."""

import torch
from torch import nn


class Block(nn.Module):
    """Two linear layers beside the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        if hidden.sum().item() == 0:
            return x
        return x + self.down(hidden)
