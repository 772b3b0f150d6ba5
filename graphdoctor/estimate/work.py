"""An operator -> the bytes that it moves and the arithmetic that it does."""

from __future__ import annotations

from math import prod

from graphdoctor.estimate.kernels import changes_layout, is_attention
from graphdoctor.values.recording import Op, TensorUse

_WRITE_ONLY = frozenset(
    {"fill_", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "arange"}
    | {"new_zeros", "new_ones", "new_full", "rand", "randn", "normal_", "uniform_", "bernoulli_"}
    | {"rand_like", "randn_like", "random_", "exponential_"}
)
_GATHERS = frozenset({"index_select", "embedding", "index", "gather", "take"})
_SCATTERS_IN_PLACE = frozenset(
    {"scatter_", "scatter_add_", "index_add_", "index_copy_", "index_put_", "_index_put_impl_"}
)
_SOFTMAX = frozenset({"_softmax", "_log_softmax"})
# ATen/native/cuda/SoftMax.cu: rows up to this long stay in registers; longer ones stay in shared
# memory where they fit and are aligned, and are else read for the maximum, the sum and the result.
_REGISTER_ROW = 1024
_SHARED_ROW_BYTES = 48 * 1024
_VECTOR_BYTES = 16


def bytes_moved(op: Op) -> int:
    """Bytes read from and written to device memory, each operand once."""
    name = op.base_name
    written = sum(map(touched_bytes, op.outputs))
    inputs = op.inputs
    if name in _WRITE_ONLY:
        return written or sum(touched_bytes(use) for use in inputs if use.storage in op.writes)
    if name.startswith("_embedding_bag") and "backward" not in name:
        indices, bag = inputs[1] if len(inputs) > 1 else inputs[0], inputs[0]
        return indices.numel * _row_bytes(bag) + indices.nbytes + _first_bytes(op.outputs)
    if name in _SOFTMAX and inputs:
        return _row_reads(inputs[0]) * touched_bytes(inputs[0]) + written
    if name in _GATHERS:
        return 2 * written + sum(map(touched_bytes, inputs[1:]))
    if name in _SCATTERS_IN_PLACE:
        return 3 * sum(map(touched_bytes, inputs[1:]))
    if name == "copy_" and len(inputs) == 2:
        return sum(map(touched_bytes, inputs))
    if op.writes and not op.outputs:
        written = sum(touched_bytes(use) for use in inputs if use.storage in op.writes)
    return sum(map(touched_bytes, inputs)) + written


def touched_bytes(use: TensorUse) -> int:
    """Bytes of memory that the tensor covers: a dimension of stride 0 is read from cache."""
    if 0 not in use.stride:
        return use.nbytes
    sizes = (size for size, stride in zip(use.shape, use.stride, strict=False) if stride)
    return prod(sizes) * use.itemsize


def _row_reads(use: TensorUse) -> int:
    """How often a softmax reads its rows; the last dimension is taken to be the one it is over."""
    length = use.shape[-1] if use.shape else 1
    row_bytes = length * use.itemsize
    if length <= _REGISTER_ROW:
        return 1
    return 1 if row_bytes <= _SHARED_ROW_BYTES and row_bytes % _VECTOR_BYTES == 0 else 3


def is_unaligned_product(op: Op) -> bool:
    """Whether a half-precision product has rows that tensor cores cannot load 16 bytes at a time."""
    if not matrix_flops(op) or is_attention(op) or op.base_name.startswith("convolution"):
        return False
    sides = [use for use in (*op.inputs, *op.outputs) if len(use.shape) >= 2]
    return any(use.itemsize == 2 and _has_odd_rows(use) for use in sides)


def _has_odd_rows(use: TensorUse) -> bool:
    steps = [
        stride
        for size, stride in zip(use.shape[-2:], use.stride[-2:], strict=False)
        if stride > 1 and size > 1
    ]
    return any(stride * use.itemsize % _VECTOR_BYTES for stride in steps)


def layout_bytes(op: Op) -> int:
    """Bytes moved to turn a convolution's operands into the layout of tensor cores and back."""
    if not changes_layout(op):
        return 0
    return 2 * (sum(use.nbytes for use in op.inputs[:2]) + op.outputs[0].nbytes)


def _row_bytes(use: TensorUse) -> int:
    return use.nbytes // use.shape[0] if use.shape and use.shape[0] else use.nbytes


def _first_bytes(uses: tuple[TensorUse, ...]) -> int:
    return uses[0].nbytes if uses else 0


def matrix_flops(op: Op) -> float:
    """Multiplications and additions of matrix products, convolutions and attention; else 0."""
    name = op.base_name
    if is_attention(op):
        return _attention_flops(op)
    if name.startswith("convolution"):
        return _convolution_flops(op)
    if name in ("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_grouped_mm", "linear"):
        return _product_flops(op, left=0)
    if name in ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"):
        return _product_flops(op, left=1)
    return 0.0


def _product_flops(op: Op, *, left: int) -> float:
    inputs = op.inputs
    if len(inputs) <= left or not op.outputs or not inputs[left].shape:
        return 0.0
    batches = inputs[left].shape[0] if op.base_name == "addbmm" else 1
    return 2.0 * op.outputs[0].numel * inputs[left].shape[-1] * batches


def _convolution_flops(op: Op) -> float:
    """2 x outputs x what one output sums over; backward does that for data and for weight."""
    is_backward = op.base_name == "convolution_backward"
    inputs = op.inputs
    weight_index = 2 if is_backward else 1
    if len(inputs) <= weight_index:
        return 0.0
    weight = inputs[weight_index]
    result = inputs[0] if is_backward else op.outputs[0]
    transposed = op.args[6] is True if len(op.args) > 6 else False
    positions = inputs[0] if transposed else result
    per_position = weight.numel // weight.shape[0] if weight.shape and weight.shape[0] else 0
    return 2.0 * positions.numel * per_position * (2.0 if is_backward else 1.0)


def _attention_flops(op: Op) -> float:
    """Two products forward; five in the backward, which computes the scores again."""
    is_backward = "backward" in op.base_name
    heads = [use for use in op.inputs if len(use.shape) == 4]
    if is_backward:
        heads = heads[1:]
    if len(heads) < 2:
        return 0.0
    query, key = heads[0], heads[1]
    keys = key.shape[1] if "_attention_forward" in op.base_name else key.shape[2]
    return 2.0 * query.numel * keys * (5.0 if is_backward else 2.0)
