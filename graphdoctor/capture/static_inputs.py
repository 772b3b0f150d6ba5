"""Fresh inputs -> tensors at fixed addresses that a graph reads, and new values for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from graphdoctor.capture.tree import Leaves, input_leaves, map_inputs
from graphdoctor.errors import GraphDoctorError
from graphdoctor.target.target import Inputs

_ALIGNMENT = 16  # bytes; kernels choose their vector width by it


class InputMismatch(GraphDoctorError):
    """Inputs that a captured graph cannot be given: something that it froze is different."""


def memory_of(tensors: Iterable[torch.Tensor]) -> frozenset[object]:
    """The memory behind tensors, for `clone_inputs` to leave alone."""
    return frozenset(map(_memory_of, tensors))


def clone_inputs(inputs: Inputs, *, kept: Collection[object] = ()) -> Inputs:
    """The same call on memory of its own, except for `kept` memory: the step's own state.

    Strides are kept, also 0 (expanded); tensors that share memory share it in the clone, in the
    same way. Leaves that are no tensors are passed on as they are.
    """
    tensors = [leaf for leaf in input_leaves(inputs).values() if isinstance(leaf, torch.Tensor)]
    clones = _clone_tensors(tensor for tensor in tensors if _memory_of(tensor) not in kept)
    return map_inputs(lambda leaf: clones.get(id(leaf), leaf), inputs)


def load_inputs(static: Inputs, fresh: Inputs) -> None:
    """Copy the values of `fresh` into the tensors of `static`.

    Raises `InputMismatch`, and copies nothing, where they differ in anything but values of tensors.
    """
    old, new = input_leaves(static), input_leaves(fresh)
    _check_structure(old, new)
    pairs = [_checked_pair(path, old[path], new[path]) for path in old]
    with torch.no_grad():
        for pair in filter(None, pairs):
            _copy_values(*pair)


def _check_structure(old: Leaves, new: Leaves) -> None:
    missing = [path for path in old if path not in new]
    added = [path for path in new if path not in old]
    if missing:
        raise InputMismatch(f"The graph was captured with {missing[0]}, which these inputs lack.")
    if added:
        raise InputMismatch(f"The graph was captured without {added[0]}, which these inputs have.")


def _checked_pair(path: str, old: object, new: object) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The tensors to copy between; None for a leaf that is no tensor, which must be equal."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        for what, before, after in _invariants(old, new):
            if before != after:
                raise InputMismatch(
                    f"The {what} of {path} changed from {before} to {after}: "
                    f"a graph is captured for one {what}."
                )
        return old, new
    if type(old) is not type(new):
        raise InputMismatch(
            f"{path} changed from {type(old).__name__} to {type(new).__name__}: "
            "a graph keeps what it was captured with."
        )
    if not is_same_value(old, new):
        raise InputMismatch(
            f"{path} changed from {_short(old)} to {_short(new)}: "
            "a value that is no tensor is frozen in the graph."
        )
    return None


def _invariants(old: torch.Tensor, new: torch.Tensor) -> Iterator[tuple[str, object, object]]:
    yield "shape", tuple(old.shape), tuple(new.shape)
    yield "dtype", old.dtype, new.dtype
    yield "device", old.device, new.device
    yield "layout", old.layout, new.layout
    if is_overlapping(old):
        # Elements that share memory cannot take values that do not.
        yield "stride", old.stride(), new.stride()


def is_same_value(old: object, new: object) -> bool:
    """Equality of two leaves that are no tensors; False where they cannot be compared."""
    if old is new:
        return True
    try:
        if hasattr(old, "__array__"):
            return bool((old == new).all())  # type: ignore[attr-defined]
        return bool(old == new) or (old != old and new != new)
    except Exception:  # the comparison is the user's code
        return False


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # so is __repr__
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _clone_tensors(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Clones by the `id` of the original."""
    groups: dict[object, dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(_memory_of(tensor), {})[id(tensor)] = tensor
    return {key: clone for group in groups.values() for key, clone in _clone_group(group)}


def _memory_of(tensor: torch.Tensor) -> object:
    """A key that is equal for tensors of one storage."""
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
    if not _is_plain(tensors[0]):
        yield from ((key, _like(tensor, tensor.detach().clone())) for key, tensor in group.items())
        return
    spans = [_byte_span(tensor) for tensor in tensors]
    low = min(start for start, _ in spans) // _ALIGNMENT * _ALIGNMENT
    high = -(-max(end for _, end in spans) // _ALIGNMENT) * _ALIGNMENT
    first = tensors[0]
    # A step that copies pinned inputs without blocking must find the clone pinned too.
    pin = first.device.type == "cpu" and first.is_pinned()
    memory = torch.empty(high - low, dtype=torch.uint8, device=first.device, pin_memory=pin)
    for key, tensor in group.items():
        offset = tensor.storage_offset() - low // tensor.element_size()
        clone = memory.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), offset)
        with torch.no_grad():
            _copy_values(clone, tensor)
        yield key, _like(tensor, clone)


def _byte_span(tensor: torch.Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + _element_span(tensor) * tensor.element_size()


def _element_span(tensor: torch.Tensor) -> int:
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


def _copy_values(into: torch.Tensor, values: torch.Tensor) -> None:
    if is_overlapping(into):
        into, values = _flat(into), _flat(values)
    into.detach().copy_(values.detach())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((_element_span(tensor),), (1,), tensor.storage_offset())


def _like(tensor: torch.Tensor, clone: torch.Tensor) -> torch.Tensor:
    """A clone that is to autograd what the original is: a leaf that wants gradients, or not."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(clone, requires_grad=tensor.requires_grad)
    return clone.requires_grad_(tensor.requires_grad)
