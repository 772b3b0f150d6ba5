"""BERT-style masked-token training, where only the masked positions enter the loss.

Gathering them by a boolean index makes a tensor whose length depends on the mask: the host must
wait to learn it, and the graph would freeze it. The encoder is safe, the loss is not. `static`
computes every position's loss and weights it by the mask: the same mean, with fixed shapes.

Expect: verdict=partly-safe; rules=GD106; mode=training
Expect[static]: verdict=safe; rules=none; mode=training
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, HIDDEN, HEADS, LAYERS, BATCH, LENGTH = 200, 64, 4, 2, 4, 32

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Parameter(torch.randn(LENGTH, HIDDEN))
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.words(tokens) + self.positions))


def gathered_loss(logits: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[masked], labels[masked])


def static_loss(logits: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses * masked).sum() / masked.sum()


def training_with(mlm_loss: Loss) -> SimpleNamespace:
    model = Bert().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(tokens: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = mlm_loss(model(tokens), labels, masked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=DEVICE)
    labels = torch.randint(VOCABULARY, (BATCH, LENGTH), device=DEVICE)
    masked = torch.rand(BATCH, LENGTH, device=DEVICE) < 0.15
    return SimpleNamespace(
        step=step,
        inputs=(tokens, labels, masked),
        state={"model": model, "optimizer": optimizer},
    )


def graphdoctor_target():
    return training_with(gathered_loss)


def static():
    return training_with(static_loss)
