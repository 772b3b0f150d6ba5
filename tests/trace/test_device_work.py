"""The device's own time by kernel, family, line and module; copies, collectives, graphs made in steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.trace.api import collective_of, family_of
from graphdoctor.trace.explain.device_work import occupied
from graphdoctor.trace.explain.verdict import Judgement
from graphdoctor.values.trace import Communication, DeviceWork, TraceReport
from tests.support.traces import TraceBuilder, launch_bound
from tests.trace.test_activity import explained

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (ALL_REDUCE, "communication"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>", "matrix product"),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x16", "matrix product"),
        ("pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW", "normalization"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::lambda>", "elementwise"),
        ("void multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("triton_poi_fused_xyz_0", "Triton"),
        ("k", "other"),
    ],
)
def test_a_kernel_belongs_to_the_family_that_its_name_says(name: str, family: str) -> None:
    assert family_of(name) == family


def test_a_collective_is_known_by_its_kernel() -> None:
    assert collective_of(ALL_REDUCE) == "all_reduce"
    assert collective_of("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)") == "send_recv"
    assert collective_of("ncclDevKernel_ReduceScatter_Sum_f32") == "reduce_scatter"


def test_communication_is_exposed_where_nothing_else_runs() -> None:
    builder = launch_bound(4)
    builder.kernel(
        builder.call("cudaLaunchKernelExC", 1001, 1), 1008, 30, name=ALL_REDUCE, stream=9
    )
    builder.events[-1]["args"] |= {"In msg nelems": 1024, "dtype": "BFloat16"}
    builder.events[0]["args"] = {"In msg nelems": [1], "dtype": {"of": "another writer"}}
    work = explained(builder).work
    assert work.communication is not None
    (found,) = work.communication.collectives
    assert found.nbytes == 2048
    assert (found.kind, found.runs, found.device_us) == ("all_reduce", 1, 30)
    assert found.exposed_us == 30 - (1 + 2 + 2 + 1)  # of kernels at 1007, 1017, 1027 and 1037


def test_time_is_given_to_kernels_lines_and_modules() -> None:
    builder = TraceBuilder()
    for place, name in enumerate(("gemm", "gemm", "softmax")):
        start = place * 100.0
        builder.frame(f"model.py({place % 2}): forward", start, 50)
        builder.frame(f"nn.Module: Layer_{place % 2}", start + 1, 48)
        builder.operator("aten::mm", start + 2, 20)
        builder.kernel(
            builder.call("cudaLaunchKernel", start + 4, 4), start + 10, 20 + place, name=name
        )
    builder.step(0, 0, 300)
    work = explained(builder).work
    assert [(one.name, one.device_us, one.operator) for one in work.kernels] == [
        ("gemm", 41, "aten::mm"),
        ("softmax", 22, "aten::mm"),
    ]
    assert [one.family for one in work.families] == ["matrix product", "softmax"]
    assert [(one.location and one.location.line, one.device_us) for one in work.lines] == [
        (0, 42),
        (1, 21),
    ]
    assert [(one.name, one.kernels, one.places) for one in work.modules] == [("Layer", 3, 2)]
    assert [one.host_us for one in work.lines] == [100, 50]


def test_annotations_have_the_launches_of_autograds_own_thread() -> None:
    builder = TraceBuilder()
    builder.annotation("backward", 1000, 100)
    builder.operator("autograd::engine::evaluate_function: MulBackward0", 1010, 60)
    builder.events[-1]["tid"] = 5005
    builder.kernel(builder.call("cudaLaunchKernel", 1020, 4, thread=5005), 1030, 20)
    builder.kernel(
        builder.call("cudaLaunchKernel", 1040, 4, thread=6006), 1060, 7
    )  # who knows whose
    (found,) = explained(builder).work.annotations
    assert (found.name, found.kernels, found.device_us) == ("backward", 1, 20)


def memory(builder: TraceBuilder, moment: float, nbytes: int, held: int, device: int = 0) -> None:
    args = {"Device Type": 1 if device >= 0 else 0, "Device Id": device, "Bytes": nbytes}
    builder.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": moment, "pid": 4000, "tid": 4001,
         "args": {**args, "Total Allocated": held, "Total Reserved": 2 * held}}
    )  # fmt: skip


def test_memory_has_its_peak_its_growth_and_what_is_allocated_in_gaps() -> None:
    builder, held = launch_bound(5, steps=4), 1000
    for step in range(4):
        begin = 1000.0 + step * 50
        memory(builder, begin + 4, 600, held + 600)  # before the kernel at 7: the device idles
        memory(builder, begin + 8, 200, held + 800)  # while it runs
        memory(builder, begin + 30, -700, held + 100)
        memory(builder, begin + 31, 9999, 99_999, device=-1)  # the host's
        held += 100
    found = explained(builder)
    used = found.work.memory
    assert used is not None
    assert (used.peak_allocated_bytes, used.peak_reserved_bytes) == (2100, 4200)
    assert (used.growth_bytes, used.reserved_growth_bytes) == (100, 200)
    assert (used.allocations, used.allocated_bytes) == (2, 800)
    assert used.allocations_in_gaps == pytest.approx(
        3 / 4
    )  # before the first kernel there is no gap
    assert "+100 B allocated and +200 B reserved" in trace_page.render(found, Look())
    assert explained(launch_bound(5)).work.memory is None


def test_memory_that_a_profiler_of_2021_did_not_count_is_not_said_to_be_nothing() -> None:
    builder = launch_bound(5, steps=2)
    for step in range(2):
        memory(builder, 1004.0 + step * 50, 600, 0)
        for total in ("Total Allocated", "Total Reserved"):
            del builder.events[-1]["args"][total]
    found = explained(builder)
    used = found.work.memory
    assert used is not None
    assert (used.peak_allocated_bytes, used.peak_reserved_bytes) == (None, None)
    assert (used.growth_bytes, used.allocations) == (None, 1)
    page = trace_page.render(found, Look())
    assert "1 a step, 600 B in all" in page
    assert "reserved" not in page


def test_copies_are_told_by_direction_and_memory() -> None:
    builder = launch_bound(10)
    for place, memory in enumerate(("Pinned", "Pageable", "Pageable")):
        call = builder.call("cudaMemcpyAsync", 1031 + place * 10, 1)
        builder.copy(call, 1034 + place * 10, 2, name=f"Memcpy HtoD ({memory} -> Device)")
    pageable, pinned = explained(builder).work.copies
    assert (pageable.direction, pageable.host_memory, pageable.copies) == ("HtoD", "pageable", 2)
    assert (pinned.host_memory, pinned.nbytes, pinned.device_us) == ("pinned", 4, 2)


def busy(name: str, *, alone_us: float, kernel_us: float, beside: bool = False) -> TraceReport:
    """4 steps of 20 rounds that are launched far ahead: a kernel, and a copy or a collective of this name
    behind it, or beside it on another stream."""
    builder, host, device = TraceBuilder(), 1000.0, 1100.0
    for step in range(4):
        begin = host
        for _ in range(20):
            builder.launch((host, 2), (device, kernel_us))
            start = device if beside else device + kernel_us
            call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernelExC"
            correlation = builder.call(call, host + 3, 2)
            if name.startswith("Memcpy"):
                builder.copy(correlation, start, alone_us, name=name)
            else:
                builder.kernel(correlation, start, alone_us, name=name, stream=9)
            host, device = host + 6, max(start + alone_us, device + kernel_us)
        builder.step(step, begin, host - begin)
    return explained(builder)


@pytest.mark.parametrize("way", ["HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)"])
def test_a_device_that_mostly_copies_is_not_told_to_look_at_its_kernels(way: str) -> None:
    found = busy(f"Memcpy {way}", alone_us=300, kernel_us=100)
    assert found.verdict == "gpu-bound"
    assert "For 75% of the time it only runs copies between host" in found.reason
    assert "Keep on the GPU what every step copies" in found.advice
    assert found.work.copies_exposed_us == pytest.approx(20 * 300)


def test_a_device_that_mostly_communicates_is_told_to_look_at_all_ranks() -> None:
    found = busy(ALL_REDUCE, alone_us=300, kernel_us=100)
    assert found.verdict == "gpu-bound"
    assert "For 75% of the time it only runs collectives" in found.reason
    assert "the traces of all ranks" in found.advice


@pytest.mark.parametrize(
    ("name", "alone_us", "beside"),
    [
        ("Memcpy HtoD (Pinned -> Device)", 90, False),  # less than half of the time
        ("Memcpy HtoD (Pinned -> Device)", 100, True),  # hidden by the kernel
        ("Memcpy DtoD (Device -> Device)", 300, False),  # the device's own work
        (ALL_REDUCE, 100, True),
    ],
)
def test_a_device_that_computes_is(name: str, alone_us: float, beside: bool) -> None:
    found = busy(name, alone_us=alone_us, kernel_us=100, beside=beside)
    assert found.verdict == "gpu-bound"
    assert "nothing on it but" not in found.reason
    assert "Look at the kernels" in found.advice


@pytest.mark.parametrize(("exposed_us", "is_told"), [(50.0, False), (50.1, True)])
@pytest.mark.parametrize("kind", ["copies", "collectives"])
def test_what_takes_more_than_half_of_the_time_is_told(
    kind: str, exposed_us: float, is_told: bool
) -> None:
    work = DeviceWork(copies_exposed_us=exposed_us if kind == "copies" else 0.0)
    if kind == "collectives":
        work = replace(work, communication=Communication(90.0, 1.0, exposed_us))
    judged = Judgement("gpu-bound", "Busy.", "Look at the kernels.", "high")
    said = occupied(judged, work, 100.0)
    assert (f"it only runs {kind}" in said.reason) is is_told
    assert (said == judged) is not is_told
    assert occupied(judged, work, 0.0) == judged  # of a step without a length nothing is known
    assert occupied(replace(judged, verdict="mixed"), work, 100.0).verdict == "mixed"
