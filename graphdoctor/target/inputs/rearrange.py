"""Whole numbers that go together -> a way to draw the same numbers in other places.

Ids with marks among them, grids and lengths are valid for what they count or mark, so that numbers drawn
from their range are often none that anybody would pass. The same numbers elsewhere mostly are.
"""

from __future__ import annotations

import torch

from graphdoctor.target.inputs.draw import Draw, is_order

_WIDEST_RECORD = 4  # numbers that belong together in a row: a grid, a box, a pair


def rearranging_of(values: torch.Tensor) -> Draw | None:
    """How to draw these numbers (a CPU tensor of integers or bools) in other places; None where none is."""
    if values.is_floating_point() or values.is_complex() or values.is_quantized:
        return None
    if values.numel() < 2 or values.dim() == 0:
        return None
    if values.dim() == 1:
        is_sorted = values.dtype is torch.bool or bool((values.diff() >= 0).all())
        return None if is_sorted or is_order(values.long()) else _rows(values)
    is_mask = int(values.unique().numel()) <= 2
    if is_mask or values.shape[-1] <= _WIDEST_RECORD:
        return _rows(values) if values.shape[0] > 1 else None
    return _words(values)


def _rows(values: torch.Tensor) -> Draw:
    kept = values.clone()
    return lambda generator: kept[torch.randperm(kept.shape[0], generator=generator)]


def _words(values: torch.Tensor) -> Draw | None:
    """Marks stay: what repeats side by side, as image tokens and padding do, and the first and last id."""
    flat, is_repeated = values.flatten().clone(), values[..., 1:] == values[..., :-1]
    ends = torch.stack([flat.min(), flat.max()])
    marks = torch.cat([values[..., 1:][is_repeated], ends])
    places = (~torch.isin(flat, marks)).nonzero().flatten()
    if flat[places].unique().numel() < 2:
        return None

    def draw(generator: torch.Generator) -> torch.Tensor:
        drawn = flat.clone()
        drawn[places] = flat[places[torch.randperm(places.numel(), generator=generator)]]
        return drawn.view(values.shape)

    return draw
