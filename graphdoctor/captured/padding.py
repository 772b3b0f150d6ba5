"""Serves a call of fewer rows than a graph has: pads its inputs with zeros, and cuts its answer out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphdoctor.graphs.calls.outputs import tensors_in
from graphdoctor.graphs.compare import Gap, gap_between
from graphdoctor.graphs.graphed_callable import GraphedCallable, Load, Tensors


class Fill:
    """Whose rows are in a graph's static inputs."""

    by: object = None


def answer_of(forward: GraphedCallable, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors_in(forward(tensors))]


def padding(load: Load, spare: Sequence[torch.Tensor], fill: Fill) -> Load:
    """Loads the rows of a call, with zeros behind them unless they are there from the call before."""
    zeros, owner = list(spare), object()

    def padded(fresh: Tensors) -> None:
        if fill.by is not owner:
            torch._foreach_zero_(zeros)
            fill.by = owner
        load(fresh)

    return padded


def split(
    static: Sequence[torch.Tensor], given: Sequence[torch.Tensor], dim: int, size: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The part of each static input that a call of `size` fills, and what is left of those it does not."""
    views, spare = [], []
    for whole, tensor in zip(static, given, strict=True):
        varies = whole.shape != tensor.shape
        views.append(whole.narrow(dim, 0, size) if varies else whole)
        if varies:
            spare.append(rest(whole, dim, size))
    return views, spare


def rest(whole: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return whole.narrow(dim, size, whole.shape[dim] - size)


def cut(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """The beginning of an output, in every dimension in which eager's is smaller."""
    if full.dim() != like.dim():
        return None
    for dim, length in enumerate(like.shape):
        if length > full.shape[dim]:
            return None
        full = full.narrow(dim, 0, length) if length < full.shape[dim] else full
    return full


def unlike(wanted: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """What is wrong with the answer of a padded call; "" for nothing but rounding."""
    for one, other in zip(wanted, found, strict=True):
        if _strides(one) != _strides(other):
            return "an output would lie in memory in another way than eager's"
        gap = gap_between("an output", one, other)
        # Other shapes take other kernels, which add in another order.
        if gap is None or gap.is_rounding or (gap.is_small and gap.is_within_half_the_digits):
            continue
        return f"its answer differs from eager's{_by(gap)}"
    return ""


def _by(gap: Gap) -> str:
    if not gap.is_measurable:
        return f" ({gap.detail})"
    return f" by {gap.max_abs:.2g} where the largest value is {gap.scale:.2g}"


def _strides(tensor: torch.Tensor) -> list[int]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for length, stride in pairs if length > 1]
