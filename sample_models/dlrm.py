"""A recommendation model: embedding bags, pairwise dot products and two small perceptrons.

At a small batch it is dozens of kernels of a few microseconds each, the best case for a CUDA
graph, and safe: the pairs to keep are a buffer on the device, not an index built in each step.

Expect: verdict=safe; rules=none; mode=inference
Expect[training]: verdict=safe; rules=none; mode=training
"""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, DENSE, TABLES, ROWS, BAG, WIDTH = 32, 13, 8, 100, 4, 16


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    pairs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bottom = perceptron(DENSE, 32, WIDTH)
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        features = TABLES + 1
        row, column = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", row * features + column)
        self.top = perceptron(WIDTH + len(row), 64, 32, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        bags = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([bottom, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self.pairs)
        return self.top(torch.cat([bottom, interactions], dim=1)).squeeze(1)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    sparse = torch.randint(ROWS, (BATCH, TABLES, BAG), device=DEVICE)
    return torch.randn(BATCH, DENSE, device=DEVICE), sparse


def graphdoctor_target():
    return Dlrm().to(DEVICE).eval(), batch()


def training():
    model = Dlrm().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.BCEWithLogitsLoss()

    def step(dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(dense, sparse), clicked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (*batch(), torch.rand(BATCH, device=DEVICE))
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
