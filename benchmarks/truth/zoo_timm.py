"""Each of timm's families of image models, by its smallest member, on small images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from zoo import Built, Case, Inputs, built

BATCH, CLASSES = 2, 10
SIZES = (64, 128, 224, 256)
SMALL = ("test_", "atto", "femto", "nano", "pico", "tiny", "xxs", "_xs", "micro", "small", "mini")
CANDIDATES = 4


def cases() -> Iterator[Case]:
    for family in timm.list_modules():
        if names := timm.list_models(module=family):
            yield Case(family, "timm", "image", family, partial(build, names))


def build(names: list[str]) -> Built:
    name = min(candidates(names), key=parameters_of)
    last: Exception = RuntimeError("no size of image fits")
    for size in (*SIZES, timm.get_pretrained_cfg_value(name, "input_size")[-1]):
        for given in ({"img_size": size, "depth": 2}, {"img_size": size}, {}):
            try:
                model = timm.create_model(name, num_classes=CLASSES, **given)
                return built(
                    model,
                    lambda size=size: images(size),
                    fresh_with_loss=lambda size=size: {**images(size), "labels": labels()},
                    loss=classified,
                )
            except Exception as error:
                last = error
    raise last


def candidates(names: list[str]) -> list[str]:
    """The names that say small, then the short ones."""

    def rank(name: str) -> tuple[int, int, str]:
        marks = [place for place, mark in enumerate(SMALL) if mark in name]
        return (min(marks, default=len(SMALL)), len(name), name)

    return sorted(names, key=rank)[:CANDIDATES]


def parameters_of(name: str) -> int:
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in timm.create_model(name).parameters())
    except Exception:
        return 1 << 40  # it cannot be made on the meta device: the last choice


def images(size: int) -> Inputs:
    return {"x": torch.rand(BATCH, 3, size, size)}


def labels() -> torch.Tensor:
    return torch.randint(0, CLASSES, (BATCH,))


def classified(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    out = model(inputs["x"])
    heads = out if isinstance(out, (list, tuple)) else [out]
    losses = [torch.nn.functional.cross_entropy(each, inputs["labels"]) for each in heads]
    return torch.stack(losses).sum()
