"""DLRM with 26 tables, as the Criteo data has them: embedding bags, dot products, two perceptrons."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn

DENSE, TABLES, ROWS, BAG, WIDTH = 13, 26, 100_000, 1, 64


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    pairs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bottom = _perceptron(DENSE, 512, 256, WIDTH)
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        features = TABLES + 1
        row, column = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", row * features + column)
        self.top = _perceptron(WIDTH + len(row), 512, 256, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        bags = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([bottom, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, products.index_select(1, self.pairs)], dim=1)).squeeze(1)


def _batch(batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    sparse = torch.randint(ROWS, (batch_size, TABLES, BAG), device="cuda")
    return torch.randn(batch_size, DENSE, device="cuda"), sparse


def inference(batch_size: int = 64):
    return Dlrm().cuda().eval(), _batch(batch_size)


def training(batch_size: int = 64):
    model = Dlrm().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.BCEWithLogitsLoss()

    def step(dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(dense, sparse), clicked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (*_batch(batch_size), torch.rand(batch_size, device="cuda"))
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
