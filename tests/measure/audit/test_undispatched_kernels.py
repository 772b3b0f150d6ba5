"""Memory that only kernels use which torch does not dispatch is audited as any other."""

from __future__ import annotations

import ctypes
import linecache
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import library

import graphdoctor
from graphdoctor.device.captured_kernels import CapturedKernel
from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.real import CaptureMode, RealStorageTable
from graphdoctor.measure.audit.captured_operators import (
    KernelUse,
    UndispatchedKernels,
    used_storages,
)
from graphdoctor.values.audited import AuditReport, StaleTensor
from tests.support.emulated import captured


class Launches(Observer):
    """A graph's nodes; an operator of torch's own launches a kernel on its arguments."""

    def __init__(self) -> None:
        self.nodes: list[CapturedKernel] = []

    def launch(self, name: str, *tensors: torch.Tensor) -> None:
        words = (7, *(each.data_ptr() for each in tensors))
        self.nodes.append(CapturedKernel(len(self.nodes), name, words))

    def before(self, call: Call) -> None:
        if call.facts.is_aten:
            self.launch(call.facts.name, *call.inputs)

    def count(self) -> int:
        return len(self.nodes)

    def kernels(self, positions: Iterable[int]) -> Iterator[CapturedKernel]:
        return (self.nodes[each] for each in positions)


def uses_of(program: Callable[[Launches], object]) -> list[KernelUse]:
    launches = Launches()
    kernels = UndispatchedKernels(launches)
    with CaptureMode(RealStorageTable(), (kernels, launches)):
        program(launches)
    return list(kernels.all())


def test_kernels_of_torchs_own_operators_are_left_out() -> None:
    x = torch.ones(4)

    def program(launches: Launches) -> None:
        x.mul(2)
        launches.launch("raw", x)
        x.add(1)
        launches.launch("last", x)

    found = uses_of(program)
    assert [(each.kernel.name, each.location) for each in found] == [("raw", None), ("last", None)]


def test_kernels_of_a_librarys_operator_have_its_line() -> None:
    hidden = torch.ones(4)

    @library.custom_op("graphdoctor_tests::reads_hidden", mutates_args=())
    def reads_hidden(x: torch.Tensor) -> torch.Tensor:
        now.launch("attention", x, hidden)
        return x.clone()

    def program(launches: Launches) -> None:
        nonlocal now
        now = launches
        reads_hidden(hidden)  # <- here

    now = Launches()
    (found,) = uses_of(program)
    assert found.kernel.name == "attention"
    assert found.location is not None
    assert linecache.getline(__file__, found.location.line).endswith("# <- here\n")


def test_an_address_within_a_living_storage_is_a_use_of_it() -> None:
    table = RealStorageTable()
    held, unused, freed = (torch.ones(16) for _ in range(3))
    numbers = [table.info(each).number for each in (held, unused, freed)]
    words = (0, 3, held.data_ptr() - 1, held[15:].data_ptr(), freed.data_ptr(), 2**63)
    del freed
    kernels = [KernelUse(CapturedKernel(n, f"kernel {n}", words), None) for n in (0, 1)]
    found = list(used_storages(kernels, table.alive()))
    assert [(use.kernel.name, info.number) for use, info, _ in found] == [("kernel 0", numbers[0])]


def test_the_end_of_a_storage_is_not_in_it() -> None:
    table, held = RealStorageTable(), torch.ones(16)
    table.info(held)
    use = KernelUse(CapturedKernel(0, "any", (held.data_ptr() + 64,)), None)
    assert list(used_storages([use], table.alive())) == []


# On a GPU.

SOURCE = """
extern "C" __global__ void scale_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
struct Pair { int n; const float* x; float* y; };
extern "C" __global__ void pair_kernel(Pair pair) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pair.n) pair.y[i] = 2 * pair.x[i];
}
"""


@cache
def triton_kernel() -> Any:
    triton = pytest.importorskip("triton")
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def triton_scale(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    return triton_scale


def by_triton(x: torch.Tensor, y: torch.Tensor) -> None:
    triton_kernel()[(1,)](x, y, x.numel(), BLOCK=128)


@cache
def compiled_kernel(name: str) -> Any:
    try:
        return torch.cuda._compile_kernel(SOURCE, name)
    except (AttributeError, OSError) as error:  # an older torch, or no headers of CUDA
        pytest.skip(f"torch compiles no CUDA source here: {error}")


def by_cuda(x: torch.Tensor, y: torch.Tensor) -> None:
    compiled_kernel("scale_kernel")(grid=(1, 1, 1), block=(128, 1, 1), args=[x, y, x.numel()])


class Pair(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int), ("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


def by_struct(x: torch.Tensor, y: torch.Tensor) -> None:
    pair = Pair(x.numel(), x.data_ptr(), y.data_ptr())
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    stream = torch.cuda.current_stream().cuda_stream
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(pair))
    kernel = compiled_kernel("pair_kernel").func
    assert launch(kernel, 1, 1, 1, 128, 1, 1, 0, stream, parameters, None) == 0


BY = {"triton_scale": by_triton, "scale_kernel": by_cuda, "pair_kernel": by_struct}
each_way = pytest.mark.parametrize("name", BY)


class Engine:
    """Its graph scales `cache` into `result` by a kernel that torch does not dispatch."""

    def __init__(self, name: str) -> None:
        self.launch = BY[name]
        self.cache = torch.ones(100, device="cuda")
        self.result = torch.zeros(100, device="cuda")
        self.step()  # compiles
        torch.cuda.synchronize()
        self.graph, self.sum = captured(self.step)

    def step(self) -> torch.Tensor:
        self.launch(self.cache, self.result)
        return self.result.sum()


def audited(program: Callable[[], object]) -> AuditReport:
    with torch.no_grad(), graphdoctor.audit() as found:
        program()
    return found.report()


def stale_by_name(report: AuditReport) -> dict[str, StaleTensor]:
    return {each.name: each for each in report.stale_tensors}


@pytest.mark.gpu
@each_way
def test_memory_that_only_such_a_kernel_reads_is_reported_when_it_is_freed(name: str) -> None:
    def program() -> None:
        engine = Engine(name)
        engine.graph.replay()
        engine.cache = torch.zeros(100, device="cuda")
        engine.graph.replay()  # <- stale

    (stale,) = audited(program).stale_tensors
    assert (stale.name, stale.reason, stale.operator) == ("self.cache", "freed", name)
    assert (stale.shape, stale.dtype, stale.is_written) == ((100,), "float32", None)
    assert (stale.used_at, stale.replay) == (None, 2)
    assert stale.replayed_at is not None
    lines = Path(__file__).read_text().splitlines()
    assert lines[stale.replayed_at.line - 1].endswith("# <- stale")
    assert stale.captured_at is not None


@pytest.mark.gpu
@each_way
def test_memory_that_torchs_operators_use_too_is_reported_by_them(name: str) -> None:
    def program() -> None:
        engine = Engine(name)
        engine.result = torch.zeros(100, device="cuda")
        engine.graph.replay()

    (stale,) = audited(program).stale_tensors
    assert (stale.name, stale.operator) == ("self.result", "aten.sum.default")


@pytest.mark.gpu
@each_way
def test_a_healthy_program_with_such_kernels_is_silent(name: str) -> None:
    def program() -> None:
        engine = Engine(name)
        for value in range(20):
            engine.cache.fill_(value)
            engine.graph.replay()
            assert engine.sum.item() == 200 * value

    report = audited(program)
    assert not report.has_faults
    assert report.replays == 20


@pytest.mark.gpu
def test_a_weight_that_only_such_a_kernel_reads_is_reported_when_it_is_replaced() -> None:
    def program() -> None:
        layer = torch.nn.Linear(10, 10, device="cuda")
        result = torch.zeros(100, device="cuda")
        by_triton(layer.weight, result)
        graph, _ = captured(lambda: by_triton(layer.weight, result))
        layer.weight = torch.nn.Parameter(torch.zeros(10, 10, device="cuda"))  # <- changed
        graph.replay()

    (stale,) = audited(program).stale_tensors
    assert (stale.name, stale.reason, stale.shape) == ("layer.weight", "rebound", (10, 10))
    assert stale.changed_at is not None
    assert linecache.getline(__file__, stale.changed_at.line).endswith("# <- changed\n")


@pytest.mark.gpu
def test_results_and_temporary_memory_of_the_capture_are_the_graphs() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        between = torch.empty_like(x)
        by_triton(x, between)
        result = torch.empty_like(x)
        by_triton(between, result)
        return result

    def program() -> None:
        x = torch.ones(100, device="cuda")
        step(x)
        graph, result = captured(lambda: step(x))
        graph.replay()
        assert result.sum().item() == 400
        del result
        graph.replay()

    assert not audited(program).has_faults


@pytest.mark.gpu
def test_kernels_of_torchs_own_operators_hold_no_other_tensors() -> None:
    """Their structs have unused entries, in which addresses of earlier launches may be."""

    def program() -> None:
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).cuda()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=True, foreach=True)
        x = torch.ones(8, 64, device="cuda")

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step()
        temporary = [torch.ones(64, 64, device="cuda") for _ in range(100)]
        torch._foreach_add_(temporary, 1.0)
        graph, _loss = captured(step)
        del temporary
        for _ in range(10):
            graph.replay()

    with torch.enable_grad(), graphdoctor.audit() as found:
        program()
    assert not found.report().has_faults


@pytest.mark.gpu
def test_an_operator_of_a_library_is_named_by_its_kernel_and_line() -> None:
    """As vLLM's attention, which finds its cache by the name of a layer."""
    caches = {"layer": torch.ones(100, device="cuda")}

    @library.custom_op("graphdoctor_tests::with_hidden_cache", mutates_args=())
    def with_hidden_cache(x: torch.Tensor, layer: str) -> torch.Tensor:
        result = torch.empty_like(x)
        by_triton(caches[layer], result)
        return result

    def program() -> None:
        x = torch.ones(100, device="cuda")
        with_hidden_cache(x, "layer")
        graph, _ = captured(lambda: with_hidden_cache(x, "layer"))  # <- used
        graph.replay()
        caches["layer"] = torch.zeros(100, device="cuda")
        graph.replay()

    (stale,) = audited(program).stale_tensors
    assert (stale.reason, stale.operator, stale.replay) == ("freed", "triton_scale", 2)
    assert stale.used_at is not None
    assert linecache.getline(__file__, stale.used_at.line).endswith("# <- used\n")
