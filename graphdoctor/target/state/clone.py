"""Clone inputs, with their memory, strides and shared storages alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from graphdoctor.target.state.tree import input_leaves, map_inputs
from graphdoctor.target.target import Inputs

_ALIGNMENT = 16  # bytes; kernels choose their vector width by it


def memory_of(tensors: Iterable[torch.Tensor]) -> frozenset[object]:
    """The memory behind tensors, for `clone_inputs` to leave alone."""
    return frozenset(map(_memory_of, tensors))


def tensor_leaves(inputs: Inputs) -> Iterator[torch.Tensor]:
    """The tensors among the leaves of a call."""
    return (leaf for leaf in input_leaves(inputs).values() if isinstance(leaf, torch.Tensor))


def clone_inputs(inputs: Inputs, *, kept: Collection[object] = ()) -> Inputs:
    """The same call on memory of its own, except for `kept` memory: the step's own state.

    Strides are kept, also 0 (expanded); tensors that share memory share it in the clone, in the
    same way. Leaves that are no tensors are passed on as they are.
    """
    groups: dict[object, dict[int, torch.Tensor]] = {}  # by memory, then by `id`
    for tensor in tensor_leaves(inputs):
        if (memory := _memory_of(tensor)) not in kept:
            groups.setdefault(memory, {})[id(tensor)] = tensor
    clones = {key: clone for group in groups.values() for key, clone in _clone_group(group)}
    return map_inputs(lambda leaf: clones.get(id(leaf), leaf), inputs)


def _memory_of(tensor: torch.Tensor) -> object:
    """A key that is equal for tensors of one storage. Hundreds are asked, and no mode need see it."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata if _is_plain(tensor) else ("alone", id(tensor))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Described in full by storage, offset, sizes, strides and dtype."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg()


def _clone_group(group: Mapping[int, torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    tensors = list(group.values())
    # Most inputs fill their memory: one operator then instead of six.
    if not _is_plain(tensors[0]) or (len(tensors) == 1 and _fills_its_memory(tensors[0])):
        yield from ((key, _like(tensor, tensor.detach().clone())) for key, tensor in group.items())
        return
    with torch._C.DisableTorchFunction():  # of hundreds, too, and all are plain
        spans = [_byte_span(tensor) for tensor in tensors]
        shapes = [(each.size(), each.stride(), each.storage_offset()) for each in tensors]
    low = min(start for start, _ in spans) // _ALIGNMENT * _ALIGNMENT
    high = -(-max(end for _, end in spans) // _ALIGNMENT) * _ALIGNMENT
    first = tensors[0]
    # A step that copies pinned inputs without blocking must find the clone pinned too.
    pin = first.device.type == "cpu" and first.is_pinned()
    memory = torch.empty(high - low, dtype=torch.uint8, device=first.device, pin_memory=pin)
    for (key, tensor), (size, stride, start) in zip(group.items(), shapes, strict=True):
        offset = start - low // tensor.element_size()
        clone = memory.view(tensor.dtype).as_strided(size, stride, offset)
        with torch.no_grad():
            copy_values(clone, tensor)
        yield key, _like(tensor, clone)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a plain clone has the same strides and alignment; one of pinned memory would not be pinned."""
    with torch._C.DisableTorchFunction():
        size_bytes = tensor.numel() * tensor.element_size()
        is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size_bytes
    return is_whole and not (tensor.device.type == "cpu" and tensor.is_pinned())


def _byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + element_span(tensor) * tensor.element_size()


def element_span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that a tensor reaches."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in pairs)


def is_overlapping(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory, as in an expanded tensor; errs towards True."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    reach = 1
    dims = zip(tensor.stride(), tensor.size(), strict=True)
    for stride, size in sorted(dim for dim in dims if dim[1] > 1):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def copy_values(into: torch.Tensor, values: torch.Tensor) -> None:
    """Fill one tensor with another's values; overlapping ones must have the same strides."""
    if is_overlapping(into):
        into, values = _flat(into), _flat(values)
    into.detach().copy_(values.detach())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((element_span(tensor),), (1,), tensor.storage_offset())


def _like(tensor: torch.Tensor, clone: torch.Tensor) -> torch.Tensor:
    """A clone that is to autograd what the original is: a leaf that wants gradients, or not."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(clone, requires_grad=tensor.requires_grad)
    return clone.requires_grad_(tensor.requires_grad)
