"""A sequence tagger whose batches have a different length each time.

Each operator is safe by itself, but a graph holds one shape: the graph of one length computes
nothing useful for another. Pad to a few fixed lengths, and capture one graph for each of them.

Expect: verdict=unsafe; rules=GD212; mode=inference
"""

from itertools import cycle

import torch
from torch import nn

BATCH, TOKENS, WIDTH, TAGS = 4, 100, 32, 8

lengths = cycle((12, 20, 7, 16))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.context = nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=1)
        self.tags = nn.Linear(WIDTH, TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        context = self.context(words.transpose(1, 2)).transpose(1, 2)
        return self.tags(torch.relu(words + context))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(TOKENS, (BATCH, next(lengths)))]
