"""What a run left behind -> a digest of it: equal for equal bits, in hardly any memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.graphs.compare import dense_bits, local_part
from graphdoctor.graphs.footprint import Footprint

_CHUNK = 1 << 18  # words at a time: the weighted copy stays in the cache


@dataclass(frozen=True, slots=True)
class Digest:
    """Two sums over each tensor's words, one weighted by position, with its shape and dtype.

    The copies that comparing element by element would need are several times a model's memory. Equal
    digests of different tensors would need both sums to agree modulo 2**64; where digests differ, the
    tensors themselves are compared.
    """

    tensors: dict[str, tuple[object, ...]]
    values: dict[str, str]


def digest(seen: Footprint) -> Digest:
    """Digest everything but Python state behind the roots."""
    known: dict[tuple[object, ...], tuple[object, ...]] = {}  # one pass for tensors that are one
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # no part of the step
        tensors = {path: _of_tensor(tensor, known) for path, tensor in seen.tensors.items()}
    return Digest(tensors, {path: repr(value) for path, value in seen.values.items()})


def _of_tensor(
    tensor: torch.Tensor, known: dict[tuple[object, ...], tuple[object, ...]]
) -> tuple[object, ...]:
    tensor = local_part(tensor)
    kind = (tuple(tensor.shape), tensor.dtype, str(tensor.device))
    plain = tensor.layout == torch.strided and not tensor.is_nested
    where = (tensor.data_ptr(), tensor.stride(), *kind) if plain else (id(tensor),)
    if where not in known:
        known[where] = (*kind, *_sums(dense_bits(tensor)))
    return known[where]


def _sums(bits: torch.Tensor) -> tuple[int, int]:
    words = bits.contiguous().flatten()
    size = words.element_size()
    if size < 8 and words.numel() % (8 // size) == 0 and words.numel():
        if words.storage_offset() % (8 // size):  # a view that begins between two words
            words = words.clone()
        words = words.view(torch.int64)
    total = weighted = 0
    weights = torch.ones_like(words[:_CHUNK], dtype=torch.int64).cumsum(0)  # 1, 2, 3 ...
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].long()
        total += int(chunk.sum())
        weighted += (start + 1) * int((chunk * weights[: chunk.numel()]).sum())
    return total & _MASK, weighted & _MASK


_MASK = 2**64 - 1
