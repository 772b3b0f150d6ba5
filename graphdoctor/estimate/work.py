"""An operator -> the bytes that it moves and the arithmetic that it does."""

from __future__ import annotations

from math import prod

from graphdoctor.estimate.kernels import ELEMENTS_PER_BLOCK, is_attention, tensor_lists
from graphdoctor.estimate.products import is_convolution, passes, product_of
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
_PADDED = frozenset({"constant_pad_nd", "slice_backward", "select_backward"})
_SOFTMAX = frozenset({"_softmax", "_log_softmax"})
# ATen/native/cuda/SoftMax.cu: rows up to this long stay in registers; longer ones stay in shared
# memory where they fit and are aligned, and are else read for the maximum, the sum and the result.
_REGISTER_ROW = 1024
_SHARED, _LONG_WALK = 64, 256
# Measured on an H200: 8 x 30,522 x 128 numbers took 40 ms forward and 18.5 ms backward; 21 classes of a
# segmentation, 11 us, as long as their bytes do.
_WALKS = {
    "_softmax": 4,
    "_log_softmax": 4,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}
_STEP_US = 0.32
# One block of an optimizer's kernel, on an H200: 37 us for 65,536 elements of Adam, at 28 bytes each; and 9 us for an
# addition of as many, at 12 bytes each.
_FUSED_BLOCK_GB_S, _BLOCK_GB_S = 50.0, 80.0
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
        row_bytes = bag.nbytes // bag.shape[0] if bag.shape and bag.shape[0] else bag.nbytes
        written = op.outputs[0].nbytes if op.outputs else 0
        return indices.numel * row_bytes + indices.nbytes + written
    if name in _PADDED and op.outputs:  # filled, and then a part of it copied into
        return written + sum(2 * min(use.nbytes, written) for use in inputs[:1])
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


def matrix_flops(op: Op) -> float:
    """Multiplications and additions of matrix products, convolutions and attention; else 0."""
    if is_attention(op):
        return _attention_flops(op)
    if is_convolution(op):
        return sum(each.flops for each in passes(op))
    product = product_of(op)
    return product.flops if product is not None else 0.0


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


def longest_block_us(op: Op) -> float:
    """What the largest tensor of an optimizer's operator takes: a block of threads walks 65,536 elements of it.

    Blocks run side by side, so that few large tensors take as long as one block.
    """
    lists = tensor_lists(op)
    if not lists or not lists[0]:
        return 0.0
    longest = min(max(use.numel for use in lists[0]), ELEMENTS_PER_BLOCK)
    each = sum(uses[0].itemsize for uses in lists if uses)
    written = sum(uses[0].itemsize for uses in lists if uses and uses[0].storage in op.writes)
    rate = _FUSED_BLOCK_GB_S if op.base_name.startswith("_fused") else _BLOCK_GB_S
    return longest * (each + written) / 1e3 / rate


def walked_us(op: Op) -> float | None:
    """A softmax over a dimension that is not the last: each thread walks it alone, far apart in memory.

    None where the rows lie together. ATen/native/cuda/SoftMax.cu: with more than 64 elements inside the
    dimension, no threads share it.
    """
    passes_of = _WALKS.get(op.base_name)
    inputs = op.inputs
    dim = op.args[2 if "backward" in op.base_name else 1] if len(op.args) > 2 else None
    if passes_of is None or not inputs or not isinstance(dim, int) or not inputs[0].shape:
        return None
    shape = inputs[0].shape
    place = dim % len(shape)
    inside = prod(shape[place + 1 :])
    is_walked = inside > _SHARED and shape[place] >= _LONG_WALK
    return passes_of * shape[place] * _STEP_US if is_walked else None
