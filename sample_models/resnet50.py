"""ResNet-50 on one small image, written out.

Safe, and at batch 1 bound by its launches: about 170 kernels, most of them short.

Expect: verdict=safe; rules=none; mode=inference
"""

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            projection = nn.Conv2d(inner, outer, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def stage(inner: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(4 * width, width) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inner, width, stride), *rest)


class ResNet50(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm1 = nn.BatchNorm2d(64)
        self.stage1 = stage(64, 64, blocks=3, stride=1)
        self.stage2 = stage(256, 128, blocks=4, stride=2)
        self.stage3 = stage(512, 256, blocks=6, stride=2)
        self.stage4 = stage(1024, 512, blocks=3, stride=2)
        self.classifier = nn.Linear(2048, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(image))), 3, stride=2, padding=1)
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.classifier(x.mean(dim=(2, 3)))


def graphdoctor_target():
    return ResNet50().eval(), (torch.randn(1, 3, 64, 64),)
