"""An object detector that keeps the boxes whose score passes a threshold.

How many boxes pass depends on the image, so selecting them makes the host wait for the device.
Backbone and heads are safe and can be captured; the selection belongs after the graph.

Expect: verdict=partly-safe; rules=GD106; mode=inference
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A residual block that halves the resolution."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Conv2d(inner, outer, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Detector(nn.Module):
    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold
        self.backbone = nn.Sequential(Block(3, 16), Block(16, 32), Block(32, 64))
        self.scores = nn.Conv2d(64, 1, 1)
        self.boxes = nn.Conv2d(64, 4, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.backbone(image)
        scores = self.scores(features).sigmoid().flatten()
        boxes = self.boxes(features).flatten(2).squeeze(0).t()
        return self.select(scores, boxes)

    def select(
        self, scores: torch.Tensor, boxes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        confident = scores > self.threshold
        return scores[confident], boxes[confident]


def graphdoctor_target():
    return Detector().eval(), (torch.randn(1, 3, 64, 64),)
