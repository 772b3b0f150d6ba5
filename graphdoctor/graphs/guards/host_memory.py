"""What is written to without another object -> a question whose answer changes with what it holds.

Arrays, numbers of C, streams in memory, and tensors of the host. Where asking would take too long for every
call, it is not watched at all, and nothing may be captured that could read it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import torch

from graphdoctor.graphs.calls.signature import Unwatchable, is_constant
from graphdoctor.target.state.plain import is_array, is_memory, stands_for
from graphdoctor.target.state.snapshot import has_memory

_MOST_BYTES = 1 << 22  # about 1 ms for each call
# The numbers of a longer tensor are told by torch's count of writes.
_FEW_NUMBERS = 64


def contents_of(path: str, value: object) -> Callable[[], object] | None:
    """What tells the contents; None for what has no such memory. Raises `Unwatchable` for too much of it."""
    if isinstance(value, io.BytesIO | io.StringIO):
        return partial(_of_stream, value)
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


def numbers_of(tensor: torch.Tensor) -> object:
    if not has_memory(tensor):  # reading what was freed would crash
        return "none"
    if tensor.numel() > _FEW_NUMBERS and not tensor.is_inference():
        return tensor._version
    return repr(tensor.tolist())  # where nan is nan, and 0.0 not -0.0
