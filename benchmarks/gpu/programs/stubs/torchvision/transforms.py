"""Transforms of pictures that are tensors of bytes already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        made = picture.float() / 255 if picture.dtype == torch.uint8 else picture
        return made if made.dim() == 3 else made.unsqueeze(0)


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (mean, std))

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return (picture - self.mean) / self.std


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return F.interpolate(ToTensor()(picture)[None], size=(self.size, self.size))[0]


class RandomCrop:
    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        padded = F.pad(picture, [self.padding] * 4)
        top, left = torch.randint(0, 2 * self.padding + 1, (2,)).tolist()
        return padded[..., top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture
