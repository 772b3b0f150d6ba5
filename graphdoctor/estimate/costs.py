"""The cost of one operator on a device: bytes and arithmetic, host time, device time and launches."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Figure
from graphdoctor.estimate.kernels import (
    ELEMENTS_PER_BLOCK,
    GRADIENTS,
    KernelKind,
    gradient_us,
    is_attention,
    is_foreach,
    kernel_kind,
    launches,
    tensor_lists,
)
from graphdoctor.estimate.network import network_us
from graphdoctor.estimate.products import (
    FEW_ROWS,
    computed_flops,
    is_convolution,
    is_unaligned,
    passes,
    product_of,
    small_bytes,
    walk_us,
)
from graphdoctor.estimate.ranges import ZERO, divide
from graphdoctor.operators import host_waits, transfer_of
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Arg, Op, TensorUse

_LIBRARY_CALLS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "convolution_backward")
_Key = tuple[object, ...]
_MOST = 200_000  # different operators; no model has so many


class OpCost(Struct, frozen=True, gc=False):
    """One operator: time of the host to issue it (launches included), time of the device to run it.

    `is_sync`: the host then waits until the device has run it.
    """

    host_us: Range
    device_us: Range
    launches: int
    is_sync: bool = False


def op_cost(op: Op, profile: DeviceProfile, *, autograd: bool = False) -> OpCost:
    """What one operator costs. `autograd`: it is also recorded for the backward pass."""
    count = launches(op)
    host = _host_us(op, profile, autograd=autograd)
    return OpCost(
        host_us=host + profile.launch_us.range * count,
        device_us=_device_us(op, profile, count=count) if count else ZERO,
        launches=count,
        is_sync=host_waits(op),
    )


def is_transfer(op: Op) -> bool:
    """Whether the operator does nothing but copy between host and device."""
    transfer = transfer_of(op)
    return op.base_name == "_local_scalar_dense" or (transfer is not None and not transfer.hidden)


def _host_us(op: Op, profile: DeviceProfile, *, autograd: bool) -> Range:
    costs = profile.host_us
    if op.kernels == 0:
        return ZERO  # a part of what is one call on the GPU
    if op.is_view and not op.kernels:
        return costs.view.range
    total = costs.operator.range if op.exchange is None else costs.collective.range
    taken = {use.storage for use in op.inputs}
    if fresh := len({use.storage for use in op.outputs if use.is_cuda} - taken):
        total += costs.allocation.range * fresh
    if autograd and op.phase == "forward":
        total += costs.autograd.range
    if op.base_name in _LIBRARY_CALLS or is_attention(op):
        total += costs.library_call.range
    if is_foreach(op):
        total += costs.optimizer_foreach.range
    return total


def _device_us(op: Op, profile: DeviceProfile, *, count: float) -> Range:
    if op.exchange is not None:
        return network_us(op, profile)
    if is_transfer(op):
        moved = sum(use.nbytes for use in op.outputs) or sum(use.nbytes for use in op.inputs)
        return profile.smallest_kernel_us.stream.range + transfer_us(moved, profile.copy_gb_s.range)
    kind = kernel_kind(op)
    floor: Figure = getattr(profile.smallest_kernel_us, kind)
    if kind == "matmul":  # what sets up a product, or sums up its parts, is half as long
        count = 0.5 * (count + 1) if op.kernels is None else count
    # A kernel's start and end are not hidden behind its work: the two add up.
    return floor.range * count + _work_us(op, profile, kind)


def _work_us(op: Op, profile: DeviceProfile, kind: KernelKind) -> Range:
    if is_convolution(op):
        return _convolution_us(op, profile)
    # A product of few rows, as a decoder's, does little more than to read its weights: 0.87 of
    # an H200's peak in Llama's decode, where products of many rows of as many bytes reach half
    # of it.
    product_ = product_of(op)
    of_kind: KernelKind = "stream" if (product_ is not None and product_.rows <= FEW_ROWS) else kind
    share: Figure = getattr(profile.memory_share, of_kind)
    moved = bytes_moved(op)
    transfer = transfer_us(moved, bandwidth_gb_s(profile, share, moved=moved))
    if kind == "optimizer":
        block = max(0.0, longest_block_us(op) - profile.smallest_kernel_us.optimizer.mid)
        return _longer(transfer, Range.exact(block))
    if op.base_name in GRADIENTS:
        return transfer + Range.exact(gradient_us(op))
    if (walked := walked_us(op)) is not None:
        return _longer(transfer, Range.exact(walked))
    return _longer(transfer, _arithmetic_us(op, profile))


def _convolution_us(op: Op, profile: DeviceProfile) -> Range:
    """Each of its products, the turning of their operands, and the bias."""
    total = ZERO
    for each in passes(op):
        rate = bandwidth_gb_s(profile, profile.memory_share.convolution, moved=each.nbytes)
        dtype = each.read[0].dtype
        peak = (
            profile.math_tflops.fp32
            if each.is_depthwise
            else _math_rate(dtype, profile, is_tf32=True)
        )
        math = divide(each.flops / 1e6, peak.range * profile.convolution_share.range)
        total += _longer(transfer_us(each.nbytes, rate), math)
        total += _streamed_us(each.layout_bytes, profile, profile.memory_share.strided)
    return total + _streamed_us(small_bytes(op), profile, profile.memory_share.stream)


def _streamed_us(moved: int, profile: DeviceProfile, share: Figure) -> Range:
    return transfer_us(moved, bandwidth_gb_s(profile, share, moved=moved)) if moved else ZERO


def bandwidth_gb_s(profile: DeviceProfile, share: Figure, *, moved: int) -> Range:
    """What a kernel that moves so many bytes reaches; small operands may still be cached."""
    rate = profile.memory_gb_s.range * share.range
    is_cached = moved <= profile.cache_mb.mid * 1e6 / 2
    return rate * profile.cache_speedup.range if is_cached else rate


def transfer_us(moved: int, gb_s: Range) -> Range:
    return divide(moved / 1e3, gb_s)


def _arithmetic_us(op: Op, profile: DeviceProfile) -> Range:
    product_ = product_of(op)
    flops = computed_flops(op, product_) if product_ is not None else matrix_flops(op)
    if not flops:
        return ZERO
    dtype = next((use.dtype for use in op.inputs if "float" in use.dtype), "float32")
    share = (profile.attention_share if is_attention(op) else profile.math_share).range
    if is_unaligned(op):
        share *= profile.unaligned_share.range
    computing = divide(flops / 1e6, _math_rate(dtype, profile).range * share)
    if product_ is None:
        return computing
    walk = max(0.0, walk_us(product_) - profile.smallest_kernel_us.matmul.mid)
    return _longer(computing, Range.exact(walk))


def _math_rate(dtype: str, profile: DeviceProfile, *, is_tf32: bool = False) -> Figure:
    """PyTorch's defaults: convolutions may use tf32, matrix products keep full fp32."""
    rates = profile.math_tflops
    if dtype == "float32" and is_tf32:
        return rates.tf32
    by_dtype = {"float64": rates.fp64, "float16": rates.fp16, "bfloat16": rates.bf16}
    return by_dtype.get(dtype, rates.fp32)


def _longer(first: Range, second: Range) -> Range:
    return Range(
        max(first.low, second.low), max(first.mid, second.mid), max(first.high, second.high)
    )


class KnownCosts:
    """The costs on one GPU. Equal are operators that differ in their storages' numbers only."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile
        self._known: dict[_Key, OpCost] = {}

    def cost(self, op: Op, *, autograd: bool) -> OpCost:
        key = (autograd, _key(op))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            found = self._known[key] = op_cost(op, self._profile, autograd=autograd)
        return found


@lru_cache(maxsize=4)
def known_costs(profile: DeviceProfile) -> KnownCosts:
    return KnownCosts(profile)


def _key(op: Op) -> _Key:
    numbers: dict[int, int] = {}
    parts = tuple(_part(arg, numbers) for arg in op.args)
    named = tuple((name, _part(arg, numbers)) for name, arg in op.kwargs)
    outputs = tuple(_part(use, numbers) for use in op.outputs)
    writes = tuple(numbers.setdefault(storage, len(numbers)) for storage in op.writes)
    return (
        op.name,
        op.device,
        op.phase,
        op.tags,
        op.kernels,
        op.exchange,
        parts,
        named,
        outputs,
        writes,
    )


def _part(arg: Arg, numbers: dict[int, int]) -> object:
    """The argument without what makes no difference; 1, 1.0 and True are kept apart."""
    if isinstance(arg, TensorUse):
        number = numbers.setdefault(arg.storage, len(numbers))
        return (number, arg.shape, arg.stride, arg.dtype, arg.device, arg.itemsize)
    if isinstance(arg, tuple):
        return tuple(_part(item, numbers) for item in arg)
    return arg if isinstance(arg, bool) else type(arg)


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
