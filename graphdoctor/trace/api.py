"""Tell from the name of a CUDA or HIP call, an annotation, a kernel or a copy what it does."""

from __future__ import annotations

import re
from functools import lru_cache

_BLOCKING = frozenset(
    {
        *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
        *("cudaMemcpy", "cudaMemcpy2D", "cudaMalloc", "cudaFree", "cudaFreeHost", "cudaHostAlloc"),
        *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemFree_v2"),
        *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"),
        *("hipMemcpy", "hipMemcpyWithStream", "hipMalloc", "hipFree", "hipHostMalloc"),
    }
)
_GRAPH_LAUNCHES = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_NO_LAUNCHES = frozenset({"cudaLaunchHostFunc", "cuLaunchHostFunc", "hipLaunchHostFunc"})
_READS = ("DtoH", "DeviceToHost")
_UPLOADS = ("HtoD", "HostToDevice")


STEP_MARK = re.compile(r"ProfilerStep#(\d+)$")


def is_step_mark(name: str) -> bool:
    """Whether a span of this name is the profiler's mark of a step."""
    return STEP_MARK.match(name) is not None


def is_backward(name: str) -> bool:
    """Whether a span of this name is what autograd's engine runs, the backward pass."""
    return name.startswith("autograd::engine::evaluate_function")


def is_collective_mark(name: str) -> bool:
    """Whether a span of this name is torch's mark around the launch of a collective: "nccl:all_to_all"."""
    return name.startswith("nccl:")


def is_launch(name: str) -> bool:
    """Whether the call puts work on the device: a kernel, a copy, a fill or a whole graph."""
    bare = name.partition("_ptsz")[0]
    if bare in _NO_LAUNCHES:
        return False
    return "Launch" in name or "Memcpy" in name or "Memset" in name


def is_kernel_launch(name: str) -> bool:
    return is_launch(name) and "Launch" in name and not is_graph_launch(name)


def is_graph_launch(name: str) -> bool:
    return name.partition("_ptsz")[0] in _GRAPH_LAUNCHES


def is_instantiation(name: str) -> bool:
    """Whether the call makes a captured graph one that can be launched."""
    return name.startswith(("cudaGraphInstantiate", "cuGraphInstantiate", "hipGraphInstantiate"))


def is_capture(name: str) -> bool:
    """Whether the call begins to capture a graph."""
    return (
        name.startswith(("cudaStreamBegin", "cuStreamBegin", "hipStreamBegin"))
        and "Capture" in name
    )


def is_capture_end(name: str) -> bool:
    """Whether the call ends the capture of a graph."""
    return name.startswith(("cudaStreamEnd", "cuStreamEnd", "hipStreamEnd")) and "Capture" in name


def is_blocking(name: str) -> bool:
    """Whether the call returns only when the device has done its work."""
    return name.partition("_ptsz")[0] in _BLOCKING


def is_synchronization(name: str) -> bool:
    """Whether the call does nothing but wait for the device."""
    return "Synchronize" in name


def is_memcpy(name: str) -> bool:
    return "Memcpy" in name


def is_read(name: str) -> bool:
    """Whether a device event copies to the host."""
    return any(mark in name for mark in _READS)


def is_upload(name: str) -> bool:
    """Whether a device event copies from the host."""
    return any(mark in name for mark in _UPLOADS)


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
