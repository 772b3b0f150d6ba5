"""Tensors and where they were -> whether each lies there still: hundreds are asked before each replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_address = torch.Tensor.data_ptr
_in_c: Callable[..., object] | None = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


def are_at(tensors: list[torch.Tensor], addresses: list[int | None], every: Sequence[int]) -> bool:
    """Whether all are where they were; `every` are their indices. In C where this torch has it."""
    if _in_c is not None:
        return bool(_in_c(tensors, addresses, every))
    return list(map(_address, tensors)) == addresses
