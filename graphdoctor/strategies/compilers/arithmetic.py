"""A recorded step, and this process's switches -> how coarsely its matrix products may round."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import Struct

from graphdoctor.estimate.work import matrix_flops
from graphdoctor.target.state.switches import read_precision
from graphdoctor.values.recording import Iteration, Op

_TF32 = 2.0**-11  # ten bits of mantissa
_BY_DTYPE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_TENSOR_CORES_WITH_TF32 = (8, 0)


class Digits(Struct, frozen=True):
    """`eps` is the rounding of one product; 0.0: that of each tensor's own dtype."""

    whose: str = "eager"
    eps: float = 0.0


OWN_DIGITS = Digits()


def digits_of(iteration: Iteration) -> Digits:
    """Those of the coarsest product of the step, on the current GPU.

    cuDNN takes TF32 for convolutions unless it is forbidden, and autocast a half for many products:
    a float32 that comes from such has no more digits than they.
    """
    found = [digits for op in iteration.ops if (digits := _of_product(op)) is not None]
    return max(found, key=lambda digits: digits.eps, default=OWN_DIGITS)


def _of_product(op: Op) -> Digits | None:
    if not op.is_cuda or not matrix_flops(op):
        return None
    dtype = next((use.dtype for use in op.inputs if "float" in use.dtype), "")
    if dtype in _BY_DTYPE:
        return Digits(dtype, _BY_DTYPE[dtype])
    if dtype == "float32" and _may_be_tf32(is_convolution="convolution" in op.base_name):
        return Digits("TF32", _TF32)
    return None


def _may_be_tf32(*, is_convolution: bool) -> bool:
    if torch.cuda.get_device_capability() < _TENSOR_CORES_WITH_TF32:
        return False
    backend: Any = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # torch 2.9 and newer: set by name, which the old switch does not answer
        return read_precision(("cuda", "conv" if is_convolution else "matmul")) == "tf32"
