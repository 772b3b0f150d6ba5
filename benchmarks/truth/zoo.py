"""Every family of models that verdicts are held against -> its cases, each built when it is asked for."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]  # by the names that the model's forward, or the loss, takes them
FAMILIES = {
    "transformers": "hf_models",
    "timm": "zoo_timm",
    "torchvision": "zoo_torchvision",
    "diffusers": "zoo_diffusers",
    "geometric": "zoo_geometric",
    "nn": "zoo_nn",
}


def loss_of_output(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    """The loss that a model of transformers gives where it is given labels."""
    loss: torch.Tensor = model(**inputs).loss
    return loss


@dataclass(frozen=True)
class Built:
    """A model in evaluation mode with what draws its inputs anew, of the same shapes, on each call."""

    model: torch.nn.Module
    parameters: int
    inputs: tuple[str, ...]
    fresh: Callable[[], Inputs]
    fresh_with_loss: Callable[[], Inputs] | None
    no_loss: str
    loss: Callable[[torch.nn.Module, Inputs], torch.Tensor] = loss_of_output


@dataclass(frozen=True)
class Case:
    model: str
    family: str
    kind: str
    class_name: str
    build: Callable[[], Built]


def built(
    model: torch.nn.Module,
    fresh: Callable[[], Inputs],
    *,
    fresh_with_loss: Callable[[], Inputs] | None = None,
    loss: Callable[[torch.nn.Module, Inputs], torch.Tensor] | None = None,
) -> Built:
    """What was built, after one eager run; without a loss of its own, the mean of its outputs' squares."""
    model.eval()
    with torch.no_grad():
        as_it_comes(model)(**fresh())
    parameters = sum(each.numel() for each in model.parameters())
    can_train = any(each.requires_grad for each in model.parameters())
    with_loss = (fresh_with_loss or fresh) if can_train else None
    no_loss = "" if can_train else "it has no parameters" + " to train" * (parameters > 0)
    names = tuple(fresh())
    return Built(model, parameters, names, fresh, with_loss, no_loss, loss or mean_of_squares)


def as_it_comes(model: torch.nn.Module) -> torch.nn.Module:
    """A copy to try on the CPU: what a run leaves in a model, such as a cache of indices, would stay there.

    The model itself, where that run gives its parameters their shapes.
    """
    is_lazy = any(map(torch.nn.parameter.is_lazy, model.parameters()))
    return model if is_lazy else copy.deepcopy(model)


def mean_of_squares(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    """A loss that every floating-point tensor of the output has a part in."""
    parts = [each.float().square().mean() for each in tensors_in(model(**inputs))]
    return torch.stack(parts).sum()


def tensors_in(output: object) -> Iterator[torch.Tensor]:
    """The floating-point tensors of an output, in nested lists, tuples and dicts."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, dict):
        for each in output.values():
            yield from tensors_in(each)
    elif isinstance(output, (list, tuple)):
        for each in output:
            yield from tensors_in(each)


def cases(families: Iterable[str]) -> tuple[list[Case], dict[str, str]]:
    """The cases of these families, and why a family has none: what is not installed.

    Families and kinds take turns, so that a run that is cut short has seen all.
    """
    found, missing = [], {}
    for family in families:
        try:
            found.append(spread(importlib.import_module(FAMILIES[family]).cases()))
        except ImportError as error:
            missing[family] = f"{type(error).__name__}: {error}"
    return in_turn(found), missing


def spread(of_family: Iterable[Case]) -> list[Case]:
    """Kinds of models take turns."""
    kinds: dict[str, list[Case]] = {}
    for case in of_family:
        kinds.setdefault(case.kind, []).append(case)
    return in_turn(list(kinds.values()))


def in_turn(groups: list[list[Case]]) -> list[Case]:
    """Each group's share of any beginning is its share of the whole."""
    placed = [
        ((place + 0.5) / len(group), case) for group in groups for place, case in enumerate(group)
    ]
    return [case for _, case in sorted(placed, key=lambda pair: pair[0])]
