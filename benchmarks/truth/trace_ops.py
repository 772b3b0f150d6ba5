"""A trace with recorded shapes in, its operators as recorded Ops with their true device time out.

The trace has no shapes of results; they are derived here, and an operator whose result cannot be
derived is left out. Used by fit_profile.py and estimate_error.py.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct
from trace_shapes import Shapes

from graphdoctor.trace import Trace, operators_of_events
from graphdoctor.trace.arrays import KINDS
from graphdoctor.values.recording import Op, TensorUse

_DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::BFloat16": ("bfloat16", 2),
    "c10::Half": ("float16", 2),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "bool": ("bool", 1),
}
_VIEWS = frozenset(
    {"view", "_unsafe_view", "expand", "transpose", "permute", "select", "slice", "unsqueeze"}
    | {"squeeze", "t", "alias", "detach", "_reshape_alias", "split_with_sizes", "narrow"}
)
_RENAMED = {"cudnn_convolution": "convolution"}


class TracedOp(Struct, frozen=True):
    """An operator of the trace, what its kernels took, and how many there were."""

    op: Op
    device_us: float
    events: int


def traced_ops(trace: Trace, shapes: Sequence[Shapes]) -> Iterator[TracedOp]:
    """Operators with kernels and with shapes, in order."""
    times = _kernel_times(trace)
    for index, (name, told) in enumerate(_operators(trace, shapes)):
        found = times.get(index)
        op = _op(index, name, told) if found and told.dims else None
        if op is not None and found:
            yield TracedOp(op, sum(found) / 1e3, len(found))


def host_ops(trace: Trace, shapes: Sequence[Shapes]) -> tuple[Op, ...]:
    """The operators that a recording below autograd would hold: those with kernels, and views."""
    launched = _kernel_times(trace)
    found = []
    for index, (name, told) in enumerate(_operators(trace, shapes)):
        is_view = name.removeprefix("aten::") in _VIEWS
        if told.dims and (is_view or index in launched):
            op = _op(index, name, told)
            if op is not None:
                found.append(op)
    return tuple(found)


def _operators(trace: Trace, shapes: Sequence[Shapes]) -> Iterator[tuple[str, Shapes]]:
    names = (trace.names[name] for name in trace.operators.name.tolist())
    return zip(names, shapes, strict=True)


def _kernel_times(trace: Trace) -> dict[int, list[int]]:
    """Durations in ns of the kernels that each operator launched, by the operator's position.

    Copies are left out, because shapes do not say that a copy crosses the bus.
    """
    events = trace.device_events
    times: dict[int, list[int]] = defaultdict(list)
    owners = operators_of_events(trace).tolist()
    lengths = (events.end_ns - events.start_ns).tolist()
    for owner, kind, length in zip(owners, events.kind.tolist(), lengths, strict=True):
        if KINDS[kind] != "memcpy" and owner >= 0:
            times[owner].append(length)
    return times


def _op(index: int, full_name: str, operator: Shapes) -> Op | None:
    namespace, _, name = full_name.partition("::")
    if namespace != "aten":
        return None
    name = _RENAMED.get(name, name)
    args = [
        _argument(number, values)
        for number, values in enumerate(
            zip_longest(operator.dims or (), operator.dtypes or (), operator.strides or ())
        )
    ]
    tensors = [arg for arg in args if isinstance(arg, TensorUse)]
    lists = [arg for arg in args if isinstance(arg, tuple)]
    if not tensors and not any(lists):
        return None
    shape = _result(name, tensors, lists, operator.concrete or ())
    if shape is None:
        return None
    first = tensors[0] if tensors else lists[0][0]
    is_view, is_in_place = name in _VIEWS, name.endswith("_")
    storage = first.storage if is_view or is_in_place else 10_000
    strides = first.stride if is_in_place or shape == first.shape else _contiguous(shape)
    output = TensorUse(storage, shape, strides, 0, first.dtype, "cuda:0", first.itemsize)
    writes = (first.storage,) if is_in_place else ()
    return Op(
        index=index,
        name=f"aten.{name}.default",
        args=tuple(args),
        kwargs=(),
        outputs=(output,),
        writes=writes,
        tags=(),
        phase="forward",
        module="",
        device="cuda:0",
    )


def _argument(number: int, described: tuple[Any, Any, Any]) -> TensorUse | tuple[Any, ...] | None:
    dims, dtype, strides = described
    if dtype == "TensorList" or (dims and isinstance(dims[0], list)):
        shapes = [tuple(shape) for shape in dims or ()]
        return tuple(
            TensorUse(100 * number + place, shape, _contiguous(shape), 0, "bfloat16", "cuda:0", 2)
            for place, shape in enumerate(shapes)
        )
    if dtype not in _DTYPES:
        return None
    shape = tuple(dims or ())
    stride = tuple(strides) if strides and len(strides) == len(shape) else _contiguous(shape)
    return TensorUse(100 * number, shape, stride, 0, _DTYPES[dtype][0], "cuda:0", _DTYPES[dtype][1])


def _result(
    name: str,
    tensors: Sequence[TensorUse],
    lists: Sequence[tuple[TensorUse, ...]],
    concrete: Sequence[Any],
) -> tuple[int, ...] | None:
    shapes = [use.shape for use in tensors]
    if name in ("arange", "resize_"):
        return None
    if name in ("mm", "addmm"):
        return (*shapes[-2][:-1], shapes[-1][-1])
    if name in ("bmm", "baddbmm"):
        return (*shapes[-2][:2], shapes[-1][2])
    if name == "index_select":
        return (*shapes[1], *shapes[0][1:])
    if name == "cat":
        axis = int(concrete[1])
        parts = [use.shape for use in lists[0]]
        total = sum(part[axis] for part in parts)
        return tuple(
            total if place == axis % len(parts[0]) else size for place, size in enumerate(parts[0])
        )
    if name in ("mean", "sum", "all", "any"):
        axes = ast.literal_eval(concrete[1]) if len(concrete) > 1 and concrete[1] else []
        return tuple(
            size for place, size in enumerate(shapes[0]) if place - len(shapes[0]) not in axes
        )
    if name == "convolution":
        padding, stride = (ast.literal_eval(concrete[place]) for place in (2, 3))
        spatial = [
            (size + 2 * pad - kernel) // step + 1
            for size, kernel, pad, step in zip(
                shapes[0][2:], shapes[1][2:], padding, stride, strict=True
            )
        ]
        return (shapes[0][0], shapes[1][0], *spatial)
    if name.startswith(("native_layer_norm", "_softmax", "_flash_attention")):
        return shapes[0]
    return _broadcast(shapes)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)
