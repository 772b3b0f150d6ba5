"""torch's switches, most of which it keeps in C: kernels are chosen by them, and no operator tells of it.

One list for all who ask: `state/globals.py` puts them back, and `graphs/guards/modes.py` compares
those that choose kernels before a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch

Precision = tuple[str, str]  # backend and operator
# How torch's kernels may round float32 within: one switch for each backend and operator, since torch 2.9; before, none.
# The older ones set these, too, but refuse to answer once somebody has set a newer one to something else. Those of all
# operators first: the others follow them until they are set themselves.
PRECISIONS: tuple[Precision, ...] = ()
if hasattr(torch._C, "_get_fp32_precision_getter"):
    _operators = ("all", "matmul", "conv", "rnn")
    PRECISIONS = (("generic", "all"), *product(("cuda", "mkldnn"), _operators))


def read_precision(switch: Precision) -> str:
    read: Callable[[str, str], str] = vars(torch._C)["_get_fp32_precision_getter"]
    return read(*switch)


def set_precision(switch: Precision, precision: str) -> None:
    write: Callable[[str, str, str], object] = vars(torch._C)["_set_fp32_precision_setter"]
    write(*switch, precision)


ATTENTION = ("attention", "softmax", "transformer", "flash", "efficient")
_CONVOLUTION = ("conv", "norm", "rnn", "lstm", "gru", "cudnn", "ctc", "grid", "miopen")
_LINEAR_ALGEBRA = (
    *("linalg", "cholesky", "lu_", "svd", "eig", "inv"),
    *("geqrf", "orgqr", "ormqr", ".qr.", "solve"),
)
_HALF = (" float16",)
EVERY = ("",)
# What chooses a CPU's kernels, what others of these follow from, and what is too slow to ask before each replay.
_NONE: tuple[str, ...] = ()


class Switch(NamedTuple):
    """`torch._C._get_<name>`, and `_set_<name>` where this torch has it.

    `operators`: words of which one is in the name of each operator of torch's whose kernels on a GPU are chosen by
    it, or among the dtypes of its tensors. Attention, as an example, may have been taken apart into a softmax.
    """

    name: str
    meaning: str
    operators: tuple[str, ...] = EVERY
    precisions: tuple[str, ...] = ()  # the operators of the newer switches that it stands for

    @property
    def read(self) -> Callable[[], Any]:
        return getattr(torch._C, f"_get_{self.name}")  # type: ignore[no-any-return]

    @property
    def write(self) -> Callable[[Any], object] | None:
        write = getattr(torch._C, f"_set_{self.name}", None)
        # Some are of two parts, which torch tells as a pair and takes as two arguments.
        return write and (lambda value: write(*value if isinstance(value, tuple) else (value,)))

    def asked_quickly(self) -> Callable[[], object]:
        """The old switch, which is quicker; where the newer ones keep it from answering, those.

        It answers only while they agree with it, so that one that answers leaves nothing out.
        """
        try:
            self.read()
        except RuntimeError:
            newer = [("cuda", operator) for operator in self.precisions]
            return lambda: ", ".join(map(read_precision, newer))
        return self.read


_KNOWN = (
    Switch("cudnn_enabled", "cudnn.enabled", _CONVOLUTION),
    Switch("cudnn_benchmark", "cudnn.benchmark", _CONVOLUTION),
    Switch("cudnn_deterministic", "cudnn.deterministic", _CONVOLUTION),
    Switch("cudnn_allow_tf32", "TF32 in cudnn", _CONVOLUTION, precisions=("conv", "rnn")),
    Switch("cublas_allow_tf32", "the precision of matrix products", precisions=("matmul",)),
    Switch("float32_matmul_precision", "torch.get_float32_matmul_precision", _NONE),
    Switch("cublas_allow_fp16_accumulation", "half-precision accumulation", _HALF),
    Switch("cublas_allow_fp16_reduced_precision_reduction", "half-precision sums"),
    Switch("cublas_allow_bf16_reduced_precision_reduction", "bfloat16 sums"),
    # To ask for one of these libraries takes 2.4 us, a third of what the guards of a captured call do.
    Switch("blas_preferred_backend", "the preferred library of matrix products", _NONE),
    Switch("linalg_preferred_backend", "the preferred library of linear algebra", _LINEAR_ALGEBRA),
    Switch("sdp_priority_order", "the order of attention's kernels", ATTENTION),
    Switch("flash_sdp_enabled", "flash attention", ATTENTION),
    Switch("mem_efficient_sdp_enabled", "memory-efficient attention", ATTENTION),
    Switch("cudnn_sdp_enabled", "cudnn's attention", ATTENTION),
    Switch("math_sdp_enabled", "plain attention", ATTENTION),
    Switch(
        *("math_sdp_allow_fp16_bf16_reduction", "plain attention's sums in half precision"),
        ATTENTION,
    ),
    Switch("fa3_sdp_enabled", "FlashAttention-3", ATTENTION),
    Switch("overrideable_sdp_enabled", "overridden attention", ATTENTION),
    Switch("rocm_fa_preferred_backend", "the preferred flash attention of ROCm", _NONE),
    Switch("nnpack_enabled", "NNPACK", _NONE),
    Switch("qengine", "the engine of quantized operators", _NONE),
    Switch("mkldnn_enabled", "oneDNN", _NONE),
    Switch("mkldnn_deterministic", "deterministic algorithms of oneDNN", _NONE),
    Switch("onednn_allow_tf32", "TF32 in oneDNN", _NONE),
)
SWITCHES = tuple(each for each in _KNOWN if hasattr(torch._C, f"_get_{each.name}"))
