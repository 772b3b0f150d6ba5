"""Tell from the name of a CUDA or HIP call, or of an annotation, what it does."""

from __future__ import annotations

import re

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
