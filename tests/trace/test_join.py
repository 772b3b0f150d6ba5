"""Which call launched each device event, which operator that call, and what they sum to."""

from __future__ import annotations

import pytest

from graphdoctor.trace import Trace
from graphdoctor.trace.join import launch_of, operator_of, operators_of_events
from tests.support.traces import TraceBuilder


def launched_by(trace: Trace) -> list[str]:
    """For each device event, the call that launched it and when that began in us."""
    return [
        f"{trace.names[trace.calls.name[row]]} {trace.calls.start_ns[row] / 1e3:.0f}"
        if row >= 0
        else ""
        for row in launch_of(trace).tolist()
    ]


def test_an_event_belongs_to_the_call_of_its_number_and_without_one_to_none() -> None:
    builder = TraceBuilder()
    first = builder.call("cudaLaunchKernel", 100, 5)
    second = builder.call("cudaLaunchKernel", 110, 5)
    for number, start in ((second, 130), (first, 140), (77, 150), (None, 160)):
        builder.kernel(number, start, 5)
    assert launched_by(builder.trace()) == ["cudaLaunchKernel 110", "cudaLaunchKernel 100", "", ""]


@pytest.mark.parametrize(
    ("start", "call"),
    [(90, 100), (100, 100), (199, 100), (200, 200), (299, 200), (300, 300), (900, 300)],
)
def test_of_calls_with_one_number_the_last_that_began_before_the_event_counts(
    start: float, call: int
) -> None:
    builder = TraceBuilder()
    for begin in (100, 200, 300):
        builder.call("cudaLaunchKernel", begin, 5, correlation=7)
    builder.kernel(7, start, 5)
    assert launched_by(builder.trace()) == [f"cudaLaunchKernel {call}"]


def test_a_call_that_launches_is_taken_before_one_that_does_not() -> None:
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel", 100, 9, correlation=7)
    builder.call("cuCtxGetCurrent", 103, 2, correlation=7)
    builder.call("cudaEventRecord", 120, 2, correlation=8)
    builder.kernel(7, 130, 5)
    builder.kernel(8, 140, 5)
    assert launched_by(builder.trace()) == ["cudaLaunchKernel 100", "cudaEventRecord 120"]


def test_a_number_of_0_is_a_number_as_any_other() -> None:
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel", 100, 5, correlation=0)
    builder.kernel(0, 130, 5)
    assert launched_by(builder.trace()) == ["cudaLaunchKernel 100"]
    builder = TraceBuilder()
    builder.call("cudaEventRecord", 100, 5, correlation=0)
    builder.kernel(0, 130, 5)
    assert launched_by(builder.trace()) == ["cudaEventRecord 100"]


def test_a_kernel_is_its_launching_operator_s_and_one_outside_of_operators_nobody_s() -> None:
    builder = TraceBuilder()
    builder.operator("aten::linear", 100, 50)
    builder.operator("aten::mm", 110, 20)
    for start in (112, 140, 200):
        builder.launch((start, 5), (start + 100, 7))
    trace = builder.trace()
    names = ["", *trace.names]
    owners = [row if row < 0 else trace.operators.name[row] for row in operator_of(trace).tolist()]
    assert [names[int(name) + 1] for name in owners] == ["aten::mm", "aten::linear", ""]
    assert operators_of_events(trace).tolist() == operator_of(trace).tolist()


def test_without_calls_no_event_has_an_operator() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 100, 50)
    builder.kernel(1, 110, 5)
    assert operators_of_events(builder.trace()).tolist() == [-1]
