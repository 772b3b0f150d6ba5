"""One operator and a device profile -> its host time, device time and launches, computed once."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Figure
from graphdoctor.estimate.kernels import (
    GRADIENTS,
    KernelKind,
    gradient_us,
    is_attention,
    is_foreach,
    kernel_kind,
    launches,
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
from graphdoctor.estimate.work import bytes_moved, longest_block_us, matrix_flops, walked_us
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
