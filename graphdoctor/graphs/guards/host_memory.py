"""What is written to without another object -> a question whose answer changes with what it holds.

Arrays, numbers of C, streams in memory, and tensors of the host. Where asking would take too long for every
call, it is not watched at all, and nothing may be captured that could read it.
"""

from __future__ import annotations

import ctypes
import io
import operator
from collections.abc import Callable
from functools import partial

import torch

from graphdoctor.graphs.calls.signature import Unwatchable, is_constant
from graphdoctor.target.state.plain import is_array, is_memory, stands_for
from graphdoctor.target.state.snapshot import has_memory

_MOST_BYTES = 1 << 22  # about 1 ms for each call
_address = torch.Tensor.data_ptr
_read = ctypes.string_at


def contents_of(path: str, value: object) -> Callable[[], object] | None:
    """What tells the contents; None for what has no such memory. Raises `Unwatchable` for too much of it."""
    if isinstance(value, io.BytesIO | io.StringIO):
        return partial(_of_stream, value)
    if _is_iterator_of_python(value):
        return partial(operator.length_hint, value)
    if is_array(value):
        if value.dtype.hasobject and not all(map(is_constant, value.flat)):
            raise Unwatchable(
                f"{path} is a NumPy array of objects, whose state nobody can watch: keep them in a list"
            )
        _check(path, value.nbytes)
        return partial(_of_objects if value.dtype.hasobject else stands_for, path, value)
    if is_memory(value):
        with memoryview(value) as memory:  # type: ignore[arg-type]
            _check(path, memory.nbytes)
        return partial(stands_for, path, value)
    return None


def _is_iterator_of_python(value: object) -> bool:
    """Whether it tells how far it is: one of a list, a tuple, a range or a dictionary."""
    kind = type(value)
    return (
        kind.__module__ == "builtins"
        and hasattr(kind, "__next__")
        and hasattr(kind, "__length_hint__")
    )


def _check(path: str, nbytes: int) -> None:
    if nbytes > _MOST_BYTES:
        raise Unwatchable(
            f"{path} has {nbytes / 2**20:.0f} MB of the host's memory, too much to be looked at in every call: "
            "keep it in a tensor, or where the forward does not reach it"
        )


def _of_stream(stream: io.BytesIO | io.StringIO) -> object:
    return None if stream.closed else (stream.tell(), stream.getvalue())


def _of_objects(path: str, array: object) -> object:
    return path, repr(array.tolist())  # type: ignore[attr-defined]


def is_read_by_host(tensor: torch.Tensor) -> bool:
    """Whether what it holds may have become a number in the graph: a scale, or what `item()` gave."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_pinned()  # which is copied by the graph
    )


def numbers_of(path: str, tensor: torch.Tensor) -> Callable[[], object]:
    """What tells the numbers of a tensor of the host, bit by bit: torch counts no writes through `.data` or NumPy.

    Raises `Unwatchable` for too many.
    """
    if not has_memory(tensor):
        return partial(_never_read, path)  # until it lies elsewhere, which is asked as well
    reaches = (
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    nbytes = (sum(reaches) + 1) * tensor.element_size() if tensor.numel() else 0
    _check(path, nbytes)
    end = int(tensor.storage_offset()) * tensor.element_size() + nbytes
    return partial(_bytes_of, tensor, _address(tensor), nbytes, end)


def _never_read(path: str) -> object:
    return path


def _bytes_of(tensor: torch.Tensor, address: int, nbytes: int, end: int) -> bytes | None:
    """None where the memory is gone: reading it would crash."""
    if _address(tensor) != address or tensor.untyped_storage().nbytes() < end:
        return None
    return _read(address, nbytes)
