"""Models whose captured calls are timed: their modules and parameters are many, each small."""

from __future__ import annotations

import torch
from torch import nn


class Small(nn.Module):
    """Three inputs, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.one(x) * y + self.two(z)


class Bottleneck(nn.Module):
    """A block of ResNet-50's, narrow."""

    def __init__(self, down: bool) -> None:
        super().__init__()
        for index in (1, 2, 3):
            setattr(self, f"conv{index}", nn.Conv2d(8, 8, 1, bias=False))
            setattr(self, f"bn{index}", nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)) if down else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet50_like() -> nn.Module:
    """ResNet-50's modules, parameters (161) and buffers (159), each small."""
    blocks = [Bottleneck(down=number == 0) for count in (3, 4, 6, 3) for number in range(count)]
    stem = (nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Layer(nn.Module):
    """A layer of BERT's, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.output, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.up, self.down, self.last_norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) + mask
        x = self.norm(x + self.dropout(self.output(scores.softmax(-1) @ self.value(x))))
        return self.last_norm(x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))


class BertLike(nn.Module):
    """BERT-base's modules and parameters (199), each small."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(32, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList(Layer() for _ in range(12))
        self.pooler = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids) + self.places(ids) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, mask)
        return torch.tanh(self.pooler(x[:, 0]))


def subjects(device: str) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models with inputs, by name."""
    rows = tuple(torch.randn(4, 8, device=device) for _ in range(3))
    ids = torch.randint(0, 32, (2, 6), device=device)
    words = (ids, torch.zeros_like(ids), torch.zeros(2, 1, 6, device=device))
    image = (torch.randn(2, 3, 16, 16, device=device),)
    return {
        "small, 3 inputs": (Small().to(device).eval(), rows),
        "ResNet-50-like": (resnet50_like().to(device).eval(), image),
        "BERT-base-like": (BertLike().to(device).eval(), words),
    }
