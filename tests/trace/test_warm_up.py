"""Cold starts are told from launches, and left out of shares and predictions."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.trace import parse_trace
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.trace.explain.warm_up import cold_calls
from graphdoctor.values.trace import TraceReport
from tests.support.regimes import Regime, RegimeTrace, Truth
from tests.support.traces import TraceBuilder

FILE = Path("run.pt.trace.json")
MS = 1_000_000
LATER = "torch.profiler.schedule(wait=1, warmup=2, active=5)"


def regime(cold_ns: dict[int, int], name: Regime = "launch-bound") -> tuple[TraceReport, Truth]:
    text = io.StringIO()
    truth = RegimeTrace(name, kernels=50, steps=4, cold_ns=cold_ns).write(text)
    return explain_trace(parse_trace(text.getvalue().encode()), FILE), truth


def test_three_cold_launches_among_two_hundred_change_no_share_and_no_speedup() -> None:
    warm, _ = regime({})
    found, truth = regime({53: 800 * MS, 67: 7 * MS, 81: 3_000 * MS})
    assert found.warm_up_ns == truth.warm_up
    assert found.warm_up_ns > 3_800 * MS
    assert found.launch_bound_ns == truth.launch_bound
    assert (found.span_ns, found.device_busy_ns) == (truth.span, truth.busy)
    assert found.verdict == warm.verdict == "launch-bound"
    assert found.launch_bound_share == pytest.approx(warm.launch_bound_share, abs=0.01)
    assert found.prediction is not None
    assert warm.prediction is not None
    assert found.prediction.speedup.mid == pytest.approx(warm.prediction.speedup.mid, rel=0.05)
    assert found.prediction.speedup.high <= warm.prediction.speedup.high * 1.05


def test_a_launch_that_is_long_in_several_steps_is_no_cold_start() -> None:
    """The same kernel ran before: something holds up each step, and a user wants to hear of it."""
    found, _ = regime({10: 5 * MS, 60: 5 * MS, 110: 5 * MS, 160: 5 * MS})
    first_of_its_kernel = 1
    assert found.warm_up_ns < (first_of_its_kernel + 0.1) * 5 * MS
    assert found.launch_bound_ns > 3 * 5 * MS


def first_step() -> TraceBuilder:
    """One iteration, in which each kernel is new; milliseconds of cold starts and little else."""
    builder = TraceBuilder()
    at = 1000.0
    for number, cold in enumerate((0, 6_500, 0, 0, 330_000)):
        builder.operator(f"aten::op{number}", at, 30 + cold)
        builder.kernel(
            builder.call("cudaLaunchKernel", at + 10, 5 + cold),
            at + 12 + cold,
            4,
            name=f"k{number}",
        )
        at += 40 + cold
    return builder


def test_a_trace_of_first_calls_only_gets_no_prediction_and_says_what_to_do() -> None:
    found = explain_trace(first_step().trace(), FILE)
    assert found.prediction is None
    assert LATER in found.no_prediction
    assert found.verdict == "host-bound"
    assert found.reason.startswith("Warm-up takes 100% of the recorded time")
    assert LATER in found.advice
    assert found.warm_up_ns == pytest.approx(336.5 * MS, rel=0.001)
    assert found.span_ns < 1 * MS
    page = trace_page.render(found, Look(width=120))
    assert "left out of the sum: cold starts" in page
    assert "the longest is cudaLaunchKernel in aten::op4, 330 ms" in " ".join(page.split())


def test_what_passes_before_the_first_kernel_is_no_time_in_which_the_gpu_waits_for_a_cold_start() -> (
    None
):
    builder = TraceBuilder()
    builder.operator("aten::empty", 1000, 90_000)
    builder.kernel(builder.call("cudaLaunchKernel", 1010, 80_000), 81_012, 4, name="first")
    builder.operator("aten::mul", 91_000, 9_000)
    builder.kernel(builder.call("cudaLaunchKernel", 91_010, 7_000), 98_012, 4, name="second")
    for number in range(5):
        at = 100_000 + 50 * number
        builder.kernel(builder.call("cudaLaunchKernel", at, 5), at + 7, 4, name=f"k{number}")
    found = explain_trace(builder.trace(), FILE)
    assert found.warm_up_ns == 7 * MS
    (said,) = (doubt.text for doubt in found.doubts if doubt.kind == "warm-up")
    assert "waits 7 ms for cold starts" in said
    assert "the longest is cudaLaunchKernel in aten::mul, 7 ms" in said


def test_setting_up_a_library_is_warm_up_and_a_wait_or_a_copy_is_not() -> None:
    builder = TraceBuilder()
    builder.operator("aten::cudnn_convolution", 1000, 9_000)
    builder.call("cudaFree", 1010, 6_000)
    builder.launch((7_020, 5), (7_022, 3))
    builder.operator("aten::item", 10_100, 4_000)
    builder.call("cudaStreamSynchronize", 10_110, 3_000)
    for number in range(3):  # the same kernel: steady from here on
        builder.operator("aten::cudnn_convolution", 15_000 + 3_000 * number, 2_500)
        builder.call("cudaFree", 15_010 + 3_000 * number, 2_000)
        builder.launch((17_020 + 3_000 * number, 5), (17_023 + 3_000 * number, 3))
    trace = builder.trace()
    cold = [
        (trace.names[trace.calls.name[row]], int(trace.calls.start_ns[row]))
        for row in cold_calls(trace)
    ]
    assert cold == [("cudaFree", 1_010_000)]


def test_a_launch_into_a_full_queue_is_no_cold_start() -> None:
    builder = TraceBuilder()
    builder.launch((1000, 5), (1003, 60_000))
    number = builder.call("cudaLaunchKernel", 1010, 2_000)
    builder.kernel(number, 61_010, 10, name="behind it")
    assert not len(cold_calls(builder.trace()))


def with_captures(begins: list[float], *, replays: int = 0) -> TraceBuilder:
    """A fill runs before each capture of 10 ms and 40 launches; then the graphs of 40 kernels are replayed."""
    builder = TraceBuilder()
    for begin in begins:
        builder.launch((begin - 30, 5), (begin - 20, 2))
        builder.call("cudaStreamBeginCapture", begin, 2)
        for number in range(40):
            builder.operator("aten::mm", begin + 20 + 240 * number, 200)
            builder.call("cudaLaunchKernel", begin + 240 * number + 50, 4)
        builder.call("cudaMalloc", begin + 9_900, 50)
        builder.call("cudaStreamEndCapture", begin + 9_990, 10)
        builder.call("cudaGraphInstantiate", begin + 10_010, 400)
    for number in range(replays):
        at = max(begins) + 20_000 + 500 * number
        correlation = builder.call("cudaGraphLaunch", at, 20)
        for node in range(40):
            builder.kernel(correlation, at + 30 + 10 * node, 8, name=f"n{node}")
    builder.launch((max(begins) + 10_450, 5), (max(begins) + 10_460, 2))
    return builder


def test_a_trace_of_captures_alone_gets_no_prediction_and_says_what_to_do() -> None:
    builder = with_captures([2_000, 13_000, 24_000])
    found = explain_trace(builder.trace(), FILE)
    assert found.prediction is None
    assert found.no_prediction.startswith("Most launches are captured into CUDA graphs")
    assert LATER in found.no_prediction
    assert found.verdict == "host-bound"
    assert found.reason.startswith(
        "Warm-up takes 96% of the recorded time: CUDA graphs are captured"
    )
    assert LATER in found.advice
    assert found.warm_up_ns == 3 * (10_000 + 400) * 1_000
    assert not found.syncs  # the malloc lies in a capture
    (said,) = (doubt.text for doubt in found.doubts if doubt.kind == "warm-up")
    assert "cold starts, which capture CUDA graphs and happen once" in said
    assert "the longest is the capture from cudaStreamBeginCapture on, 10 ms" in said


def test_a_capture_after_the_last_kernel_leaves_no_step_to_judge() -> None:
    builder = with_captures([2_000])
    builder.events.pop()
    builder.events.pop()
    found = explain_trace(builder.trace(), FILE)
    assert found.warm_up_ns == 0
    assert found.prediction is None
    assert found.verdict == "cannot-tell"
    assert "no step is steady. Most launches are captured" in found.reason
    assert LATER in found.advice


def test_replays_after_a_capture_are_steady() -> None:
    found = explain_trace(with_captures([2_000], replays=20).trace(), FILE)
    assert found.prediction is not None
    assert found.warm_up_ns == 10_400_000


def test_graphs_that_every_step_captures_are_no_cold_starts() -> None:
    builder = with_captures([2_000, 14_000, 26_000])
    for number, begin in enumerate((1_900, 13_900, 25_900)):
        builder.step(number, begin, 12_000)
    found = explain_trace(builder.trace(), FILE)
    assert found.warm_up_ns == 0
    assert found.graphs is not None
    assert found.graphs.made_in_steps == found.steps_counted == 2
