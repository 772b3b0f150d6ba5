"""A tensor whose rows are a batch -> another of the same make with more or fewer rows."""

from __future__ import annotations

import torch

from graphdoctor.target.inputs.draw import drawing_of


def batch_rows(tensor: torch.Tensor, size: int, *, generator: torch.Generator) -> torch.Tensor:
    """So many rows: in their order, repeated or left out evenly, so that what is sorted stays so.

    Repeated rows of floating numbers get values of their own, like the others. Order of the
    dimensions in memory, device, pinning and `requires_grad` are the tensor's.
    """
    with torch.no_grad():
        made = _expanded(tensor, size) if tensor.stride(0) == 0 else _taken(tensor, size)
        if tensor.is_floating_point() and size > tensor.shape[0] and made.stride(0):
            _draw_repeated(made, tensor.shape[0], generator)
        if tensor.device.type == "cpu" and tensor.is_pinned():
            made = made.pin_memory()
    return made.detach().requires_grad_(tensor.requires_grad)


def _expanded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """One row that stands for all."""
    return tensor.detach()[:1].clone().expand(size, *tensor.shape[1:])


def _taken(tensor: torch.Tensor, size: int) -> torch.Tensor:
    order = sorted(range(tensor.dim()), key=lambda dim: tensor.stride(dim), reverse=True)
    back = [order.index(dim) for dim in range(tensor.dim())]
    rows = _rows(tensor.shape[0], size).to(tensor.device)
    laid_out = tensor.detach().permute(order)
    return laid_out.index_select(order.index(0), rows).permute(back)


def _rows(old: int, new: int) -> torch.Tensor:
    """Which row each new one is: the first stays the first, and none goes before its neighbour."""
    return torch.arange(new) * old // new


def _draw_repeated(made: torch.Tensor, old: int, generator: torch.Generator) -> None:
    draw = drawing_of(made.detach().clone().cpu())
    if draw is None:
        return
    rows = _rows(old, made.shape[0])
    repeated = torch.nonzero(rows[1:] == rows[:-1]).flatten() + 1
    drawn = draw(generator).index_select(0, repeated)
    made[repeated.to(made.device)] = drawn.to(made.device)
