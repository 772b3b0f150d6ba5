"""What a call of CUDA or HIP does, by its name alone."""

from __future__ import annotations

import pytest

from graphdoctor.trace.api import (
    is_blocking,
    is_graph_launch,
    is_kernel_launch,
    is_launch,
    is_memcpy,
    is_read,
)

KERNELS = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchKernel_ptsz", "cuLaunchKernel",
    "cuLaunchKernelEx", "cudaLaunchCooperativeKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel",
)  # fmt: skip
GRAPHS = ("cudaGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch", "hipGraphLaunch")
COPIES = ("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "hipMemcpyAsync", "cudaMemcpyAsync_ptsz")
FILLS = ("cudaMemsetAsync", "hipMemsetAsync", "cuMemsetD8Async")
OF_THE_HOST = ("cudaLaunchHostFunc", "cudaLaunchHostFunc_ptsz", "cuLaunchHostFunc",
               "hipLaunchHostFunc")  # fmt: skip
WAITS = (
    "cudaStreamSynchronize", "cudaStreamSynchronize_ptsz", "cudaDeviceSynchronize", "cudaMalloc",
    "cuStreamSynchronize", "hipDeviceSynchronize", "cudaEventSynchronize", "hipMemcpyWithStream",
)  # fmt: skip
OTHERS = ("cudaStreamIsCapturing", "cudaEventRecord", "cudaGetDevice", "cudaStreamWaitEvent",
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor")  # fmt: skip


@pytest.mark.parametrize("name", (*KERNELS, *GRAPHS, *COPIES, *FILLS))
def test_work_of_the_device_is_launched(name: str) -> None:
    assert is_launch(name)
    assert is_kernel_launch(name) == (name in KERNELS)
    assert is_graph_launch(name) == (name in GRAPHS)
    assert is_memcpy(name) == (name in COPIES)
    assert not is_blocking(name)


@pytest.mark.parametrize("name", (*OF_THE_HOST, *OTHERS))
def test_other_calls_launch_nothing_and_wait_for_nothing(name: str) -> None:
    tests = (is_launch, is_kernel_launch, is_graph_launch, is_memcpy, is_blocking, is_read)
    assert not any(test(name) for test in tests)


@pytest.mark.parametrize("name", WAITS)
def test_a_call_that_returns_when_the_device_is_done_waits(name: str) -> None:
    assert is_blocking(name)
    assert not is_kernel_launch(name) and not is_graph_launch(name)


def test_a_copy_to_the_host_is_a_read() -> None:
    names = ("Memcpy DtoH (Device -> Pageable)", "CopyDeviceToHost", "Memcpy HtoD", "Memcpy DtoD")
    assert [is_read(name) for name in names] == [True, True, False, False]
