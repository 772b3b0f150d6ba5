"""What a run left behind -> a digest of it: equal for equal bits, in hardly any memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.graphs.compare import dense_bits, local_part
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.target.state.contents import contents_of
from graphdoctor.target.state.shared_memory import address_of, lies_on_cpu


@dataclass(frozen=True, slots=True)
class Digest:
    """What stands for each tensor's bits, with its shape and dtype.

    The copies that comparing element by element would need are several times a model's memory. Where
    digests differ, the tensors themselves are compared.
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
    where = (address_of(tensor), tensor.stride(), *kind) if plain else (id(tensor),)
    if tensor.is_meta:
        return kind
    if where not in known:
        bits = dense_bits(tensor).contiguous().reshape(-1)
        known[where] = (*kind, contents_of(bits if lies_on_cpu(bits) else bits.cpu()))
    return known[where]
