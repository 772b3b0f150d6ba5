"""Tensors and where they were -> whether each lies there still: hundreds are asked before each replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_address = torch.Tensor.data_ptr


def _one_by_one(
    tensors: list[torch.Tensor], addresses: list[int | None], every: Sequence[int]
) -> bool:
    return list(map(_address, tensors)) == addresses


# Whether all are where they were; `every` are their indices. In C where this torch has it.
are_at: Callable[[list[torch.Tensor], list[int | None], Sequence[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _one_by_one
)
