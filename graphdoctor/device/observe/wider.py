"""Half and bfloat16 on a CPU -> the operator in float32, rounded once: where its own kernel is missing or slow."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from graphdoctor.device.observe.operators import Call, replaced, written_tensors
from graphdoctor.target.state.saved_tensor import lies_on_cpu

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
# Results that stay in float32 beside narrow inputs: the logarithms of attention's sums.
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
    if call.facts.base_name == "convolution_backward":  # oneDNN makes more than it was asked for
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
