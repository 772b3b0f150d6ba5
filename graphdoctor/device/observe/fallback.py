"""Computes the result of an operator on the CPU, or the nearest thing where the CPU has no kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from graphdoctor.device.observe.collectives import (
    begin_transfer,
    finish_transfers,
    is_transfer,
)
from graphdoctor.device.observe.known_results import known_or_computed
from graphdoctor.device.observe.operators import Call, replaced, tensors_of, written_tensors
from graphdoctor.target.state.saved_tensor import give_own_memory, lies_on_cpu
from graphdoctor.values.errors import CannotDoItHere

_COPIES_AMONG_THREADS = "in the loop function of at::parallel_for is forbidden"
_COUNTS = frozenset({"histc"})
_RESIZES = frozenset({"resize_", "resize_as_", "_resize_output_"})
_NO_KERNEL = (
    "not implemented for",
    "not implemented on the CPU",
    "could not create a primitive",
    "Expected both self and other to be nested",  # on the CPU, of a nested and a dense tensor
)
# On a GPU they take a wide gradient for a narrow input; on the CPU they refuse.
_MIXED_ON_CUDA = frozenset({"_softmax_backward_data", "_log_softmax_backward_data"})


class EmulationLimit(CannotDoItHere):
    """An operator that cannot be emulated: no kernel on the CPU, and no shape function."""


def run_operator(call: Call) -> Any:
    """Run the call; `call.fallback` says why its result may differ from a GPU's."""
    try:
        if is_transfer(call.facts):
            work = call.func(*call.args, **call.kwargs)
            begin_transfer(work)
            return work
        finish_transfers()
        if call.facts.is_collective:
            return _run_on_all_ranks(call)
        if not call.facts.is_aten:  # its implementation may be Python, which names devices
            return call.func(*call.args, **call.kwargs)
        with torch._C.DisableTorchFunction():
            return known_or_computed(call, _computed)
    except (NotImplementedError, RuntimeError) as error:
        lacks_kernel = (
            isinstance(error, NotImplementedError)
            or call.facts.base_name in _MIXED_ON_CUDA
            or any(map(str(error).__contains__, _NO_KERNEL))
        )
        if not call.on_cuda or not lacks_kernel:
            raise
        return _run_otherwise(call, error)


def _computed(call: Call) -> Any:
    for tensor in _may_resize(call):
        give_own_memory(tensor)
    if is_slow_when_narrow(call):
        with torch._C._DisableAutocast():
            return run_wider(call)
    return _called(call)


def _called(call: Call) -> Any:
    """Some kernels ask for their inputs' memory among their threads, where torch lets none of them copy it."""
    try:
        return call.func(*call.args, **call.kwargs)
    except RuntimeError as error:
        facts = call.facts
        may_not_run_again = facts.written_args or facts.written_kwargs or facts.is_random
        if may_not_run_again or _COPIES_AMONG_THREADS not in str(error):
            raise
    for tensor in call.inputs:
        give_own_memory(tensor)
    return call.func(*call.args, **call.kwargs)


def _may_resize(call: Call) -> Iterator[torch.Tensor]:
    """The tensors that a call may give another size: what is resized, and results that the caller gives."""
    if call.facts.base_name in _RESIZES:
        yield from tensors_of(call.args[:1])
    if call.kwargs:
        for name in call.facts.written_kwargs:
            yield from tensors_of(call.kwargs.get(name))


def _run_on_all_ranks(call: Call) -> Any:
    """Run a collective and wait for it: on the device, whatever uses its result comes after."""
    try:
        result = call.func(*call.args, **call.kwargs)
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.ScriptObject):
                torch._C._distributed_c10d.Work.unbox(part).wait()
            elif isinstance(part, torch.Tensor):
                torch.ops._c10d_functional.wait_tensor(part)  # nothing, where nothing was begun
    except RuntimeError as error:
        raise EmulationLimit(
            f"{call.facts.name} failed on rank {torch.distributed.get_rank()}, since another rank ended,"
            f" came too late, or called something else: {_first_line(str(error))}"
        ) from error
    return result


def _run_otherwise(call: Call, error: Exception) -> Any:
    why = _first_line(str(error))
    if call.facts.base_name in _COUNTS:
        dtype = call.inputs[0].dtype  # in any, counting gives whole numbers: the result is a GPU's
        args = replaced(call.args, torch.Tensor, torch.Tensor.double)
        return call.func(*args, **call.kwargs).to(dtype)
    if any(tensor.dtype in NARROW for tensor in call.inputs):
        try:
            result = run_wider(call)
        except (NotImplementedError, RuntimeError):
            pass  # not in float32 either
        else:
            call.fallback = f"{call.facts.name} ran in float32: {why}"
            return result
    try:
        result = _shape_only(call)
    except Exception:  # whatever a shape function raises
        raise EmulationLimit(
            f"The emulated CUDA device cannot run {call.facts.name}: {why}"
        ) from error
    call.fallback = f"{call.facts.name} returned zeros of the right shape: {why}"
    return result


def _shape_only(call: Call) -> Any:
    """Ask the operator's shape function; new results are zeros, and written arguments stay."""
    originals: dict[int, torch.Tensor] = {}
    metas: dict[int, torch.Tensor] = {}

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in metas:
            meta = metas[id(tensor)] = tensor.to("meta")
            originals[id(meta)] = tensor
        return metas[id(tensor)]

    def zeros(meta: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(meta))
        if original is not None:
            return original
        strided = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu")
        return strided.zero_()

    with torch._C.DisableTorchFunction():
        kwargs = replaced(call.kwargs, torch.Tensor, shape_of)
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        return replaced(
            call.func(*replaced(call.args, torch.Tensor, shape_of), **kwargs), torch.Tensor, zeros
        )


def _first_line(text: str) -> str:
    """A reason in one sentence: torch adds advice, and a list of all its backends."""
    lines = text.strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else "no kernel"


NARROW = (torch.float16, torch.bfloat16)
_FEW_ROWS = 8  # up to which reading the matrix once, as its own kernel does, is all the work
_ALWAYS = frozenset(
    {
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    }
)
# The positions of the two matrices.
_PRODUCTS = {
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
}
_ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
_LOGARITHMS = 5  # their position in it
# Results that stay in float32 with narrow inputs: the logarithms of attention's sums.
_WIDE_RESULTS = {"_scaled_dot_product_flash_attention_for_cpu": frozenset({1})}


def is_slow_when_narrow(call: Call) -> bool:
    """Whether float32 and rounding are quicker than the CPU's own kernel for half or bfloat16.

    Only the arguments decide, so that a replay computes as eager did. Without oneDNN's kernels a
    product of two matrices of float16 takes up to 150 times as long as one of float32.
    """
    name = call.facts.name
    product = _PRODUCTS.get(name)
    if (product is None and name not in _ALWAYS) or not call.on_cuda:
        return False
    dtype = call.inputs[0].dtype
    if dtype not in NARROW or not lies_on_cpu(call.inputs[0]) or _has_quick_kernels(dtype):
        return False  # a replay of recorded operators on a real GPU has that GPU's kernels
    is_attention = (
        call.facts.base_name == _ATTENTION_BACKWARD
    )  # the logarithms of its sums are wide
    for tensor in call.inputs[:_LOGARITHMS] if is_attention else call.inputs:
        if tensor.dtype != dtype or tensor.layout is not torch.strided or tensor.is_nested:
            return False  # tensors of two dtypes are refused, here as on a GPU
    if product is None:
        return True
    one, other = (call.args[position] for position in product)
    # A few rows times a transposed matrix, as a linear layer has it, are quick at any dtype.
    return bool(one.size(-2) >= _FEW_ROWS or other.stride(-2) != 1)


@cache
def _has_quick_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels of this dtype for the processor."""
    name = f"_is_mkldnn_{'fp16' if dtype == torch.float16 else 'bf16'}_supported"
    asked = getattr(torch.ops.mkldnn, name, None) if torch.backends.mkldnn.is_available() else None
    return bool(asked is not None and asked())


def run_wider(call: Call) -> Any:
    """Run in float32 and round back: the values are close to a GPU's, not bit for bit the same.

    What the call writes through its arguments is written there; everything that is returned has
    the dtype that the narrow operator gives.
    """
    narrow = next(t.dtype for t in call.inputs if t.dtype in NARROW)
    wide_of: dict[int, torch.Tensor] = {}

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in NARROW:
            return tensor
        return wide_of.setdefault(id(tensor), tensor.float())

    args = replaced(call.args, torch.Tensor, widen)
    kwargs = replaced(call.kwargs, torch.Tensor, widen)
    if kwargs.get("dtype") in NARROW:
        kwargs["dtype"] = torch.float32
    result = call.func(*args, **kwargs)
    if call.facts.base_name == "convolution_backward":  # oneDNN computes all gradients
        result = tuple(
            made if asked else None for made, asked in zip(result, args[-1], strict=True)
        )
    originals: dict[int, torch.Tensor] = {}
    for tensor in written_tensors(call.facts, call.args, call.kwargs):
        if id(tensor) in wide_of:
            wide = wide_of[id(tensor)]
            originals[id(wide)] = tensor.copy_(wide)

    def narrowed(tensor: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(tensor))
        if original is not None:
            return original
        return tensor.to(narrow) if tensor.dtype == torch.float32 else tensor

    stays_wide = _WIDE_RESULTS.get(call.facts.base_name)
    if stays_wide is None:
        return replaced(result, torch.Tensor, narrowed)
    return tuple(
        item if position in stays_wide else replaced(item, torch.Tensor, narrowed)
        for position, item in enumerate(result)
    )
