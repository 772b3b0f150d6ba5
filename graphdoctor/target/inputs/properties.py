"""Given values and others drawn in their range -> the drawn ones with the properties of the given.

A positive definite matrix, probabilities or directions are valid together, and not number by number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Adjust = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_FEWEST = 4  # numbers in a row: fewer may be in order by chance
_NEAR = 1e-3  # as far as half precision is from a sum or a norm of one


def adjustment_for(values: torch.Tensor) -> Adjust | None:
    """What gives drawn values the property that these (floating, finite, on the CPU) have; None: none."""
    if values.dim() == 0:
        return None
    wide = values.double()
    if _is_symmetric(wide):
        return _scaled(values) if _is_positive_definite(wide) else _mirrored
    if wide.shape[-1] < 2:
        return None
    if bool((wide >= 0).all()) and bool(((wide.sum(-1) - 1).abs() < _NEAR).all()):
        return lambda drawn, _: drawn / drawn.sum(-1, keepdim=True).clamp(min=_NEAR)
    if bool(((wide.norm(dim=-1) - 1).abs() < _NEAR).all()):
        return lambda drawn, _: torch.nn.functional.normalize(drawn, dim=-1)
    if wide.shape[-1] >= _FEWEST and bool((wide.diff(dim=-1) >= 0).all()):
        return lambda drawn, _: drawn.sort(dim=-1).values
    if wide.shape[-1] >= _FEWEST and bool((wide.diff(dim=-1) <= 0).all()):
        return lambda drawn, _: drawn.sort(dim=-1, descending=True).values
    return None


def _is_symmetric(values: torch.Tensor) -> bool:
    if values.dim() < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        return False
    return torch.allclose(values, values.mT, rtol=1e-4, atol=1e-6)


def _is_positive_definite(values: torch.Tensor) -> bool:
    return bool((torch.linalg.eigvalsh(values) > 0).all())


def _scaled(values: torch.Tensor) -> Adjust:
    """D A D with a positive diagonal D: positive definite where A is, whatever was drawn."""

    def adjust(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        size = values.shape[:-1]
        by = torch.rand(size, generator=generator, dtype=torch.float64) * 0.4 + 0.8
        return (values.double() * by.unsqueeze(-1) * by.unsqueeze(-2)).to(values.dtype)

    return adjust


def _mirrored(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (drawn + drawn.mT) / 2
