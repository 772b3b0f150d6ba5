"""A mixture of experts: each token goes to the expert that the router scores highest.

Looking up which tokens an expert got makes a tensor whose length depends on the values, once per
expert. `dense` lets every expert compute every token and keeps the chosen one by weight: fixed
shapes, more arithmetic, and for few experts and few tokens still faster than the launches it saves.

Expect: verdict=partly-safe; rules=GD106; mode=inference
Expect[dense]: verdict=safe; rules=none; mode=inference
"""

import torch
from torch import nn

TOKENS, WIDTH, INNER, EXPERTS = 64, 32, 64, 4


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shared(x)
        normed = self.norm(x)
        weight, choice = self.router(normed).softmax(dim=-1).max(dim=-1)
        return x + self.mix(normed, weight, choice)

    def mix(self, x: torch.Tensor, weight: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)
            mixed.index_add_(0, rows, weight[rows, None] * expert(x[rows]))
        return mixed


class Dense(Routed):
    """The same mixture, with every expert applied to every token."""

    def mix(self, x: torch.Tensor, weight: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = torch.where(choice == number, weight, 0.0)
            mixed = mixed + share[:, None] * expert(x)
        return mixed


def graphdoctor_target():
    return Routed().eval(), (torch.randn(TOKENS, WIDTH),)


def dense():
    return Dense().eval(), (torch.randn(TOKENS, WIDTH),)
