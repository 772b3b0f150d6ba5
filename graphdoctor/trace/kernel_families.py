"""Classify kernels, copies and fills by their names, and tell which collective a kernel runs."""

from __future__ import annotations

import re
from functools import lru_cache

COMMUNICATION = "communication"
SEND_RECV = "send_recv"
_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        (COMMUNICATION, r"nccl|rccl|msccl|oneccl|nvshmem|(one|two)_?shot_?all_?reduce|cross_device_reduce"
         r"|all_?reduce_?kernel|multimem_"),
        ("copy", r"^Memcpy|^Copy(Host|Device)|^memcpy"),
        ("fill", r"^Memset|^memset|fillBuffer"),
        ("attention", r"flash|fmha|attn|attention|mem_eff"),
        ("convolution", r"conv|implicit_gemm|winograd|wgrad|dgrad|igemm|im2col|miopensp"),
        ("matrix product", r"gemm|gemv|cutlass|cublas|Cijk_|xmma|wgmma|nvjet|_mma_|matmul|splitk"),
        ("normalization", r"norm|rms_?n|::bn_|batch_?n"),
        ("softmax", r"softmax"),
        ("optimizer", r"multi_tensor|foreach|adam|sgd_|(?<![a-z])lamb(?!da)"),
        ("index, sort and scan", r"index|gather|scatter|sort|topk|scan|embedding|nonzero|radix|cub::"),
        ("reduction", r"reduce"),
        ("elementwise", r"elementwise|vectorized|unrolled|CatArray|pointwise|fill|copy|dropout|activation"
         r"|silu|gelu|rotary|rope|nchw|nhwc|transpose"),
        ("Triton", r"^triton_|_kernel_0d1d"),
    )
)  # fmt: skip
_COLLECTIVES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("all_reduce", r"all_?reduce|cross_device_reduce|multimem_all_reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all"),
        ("broadcast", r"broadcast"),
        (SEND_RECV, r"send|recv"),
        ("reduce", r"reduce"),
    )
)


def is_communication(name: str) -> bool:
    """Whether this is the first family that the name says."""
    return _FAMILIES[0][1].search(name) is not None


@lru_cache(maxsize=1 << 13)
def family_of(name: str) -> str:
    """The first family whose usual names are in this one; "other" for a name that says nothing."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), "other")


def collective_of(name: str) -> str:
    """Which collective a kernel of the communication family runs."""
    return next((kind for kind, pattern in _COLLECTIVES if pattern.search(name)), "communication")
