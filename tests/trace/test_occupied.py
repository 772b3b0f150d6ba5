"""A device that is busy with something else than computing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.trace.explain.device_work import occupied
from graphdoctor.trace.explain.verdict import Judgement
from graphdoctor.values.trace import TraceReport
from graphdoctor.values.trace_work import Communication, DeviceWork
from tests.support.traces import TraceBuilder
from tests.trace.test_activity import explained
from tests.trace.test_ranks import ALL_REDUCE


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
    assert "For 75% of the time there is nothing on it but copies between host" in found.reason
    assert "Keep on the device what every step copies" in found.advice
    assert found.work.copies_exposed_us == pytest.approx(20 * 300)


def test_a_device_that_mostly_communicates_is_told_to_look_at_all_ranks() -> None:
    found = busy(ALL_REDUCE, alone_us=300, kernel_us=100)
    assert found.verdict == "gpu-bound"
    assert "For 75% of the time there is nothing on it but collectives" in found.reason
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
    assert (f"nothing on it but {kind}" in said.reason) is is_told
    assert (said == judged) is not is_told
    assert occupied(judged, work, 0.0) == judged  # of a step without a length nothing is known
    assert occupied(replace(judged, verdict="mixed"), work, 100.0).verdict == "mixed"
