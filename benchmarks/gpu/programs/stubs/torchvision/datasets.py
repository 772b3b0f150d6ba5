"""Random pictures with random labels, in memory, in the shapes of the real data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SIZE = 40_000  # pictures of a training set, as many as a few hundred steps need


class _Pictures(torch.utils.data.Dataset):
    shape: tuple[int, ...] = (28, 28)
    classes = tuple("0123456789")

    def __init__(
        self,
        root: str = "",
        train: bool = True,
        download: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        random = torch.Generator().manual_seed(int(train))
        size = SIZE if train else SIZE // 10
        self.data = torch.randint(0, 256, (size, *self.shape), dtype=torch.uint8, generator=random)
        self.targets = torch.randint(0, 10, (size,), generator=random)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = self.data[index]
        made = picture if self.transform is None else self.transform(picture)
        return made, int(self.targets[index])


class MNIST(_Pictures):
    """28 x 28, grey."""


class CIFAR10(_Pictures):
    """3 x 32 x 32."""

    shape = (3, 32, 32)


class FakeData(_Pictures):
    def __init__(self, image_size: tuple[int, ...], transform: Callable[[Any], Any]) -> None:
        self.shape = image_size
        random = torch.Generator().manual_seed(2)
        self.data = torch.randint(0, 256, (4096, *image_size), dtype=torch.uint8, generator=random)
        self.targets = torch.randint(0, 10, (4096,), generator=random)
        self.transform = transform
