"""What costs the host most, who waited, and in which phase: by operator, by the user's line, by step."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace import Trace
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.explain.hosts import (
    is_user_frame,
    line_costs,
    location,
    operator_costs,
    sync_costs,
)
from graphdoctor.trace.explain.ranks import phases_of
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import HostCost
from tests.support.traces import TraceBuilder

STEPS = [(0, 1_000_000), (1_000_000, 2_000_000)]


def figures(costs: tuple[HostCost, ...]) -> list[tuple[str, float, float, float]]:
    return [(one.name, one.calls, one.host_us, round(one.share, 3)) for one in costs]


def two_steps() -> TraceBuilder:
    """In each step mm of 60 us, 20 of them in copy_, which to calls, and 15 in a wait in that; and relu of 40 us."""
    builder = TraceBuilder()
    for begin in (0, 1000):
        builder.frame("model.py(3): forward", begin + 5, 120)
        builder.operator("aten::mm", begin + 10, 60)
        builder.operator("aten::to", begin + 20, 20)  # nothing but what it calls
        builder.operator("aten::copy_", begin + 20, 20)
        builder.call("cudaStreamSynchronize", begin + 22, 15)
        builder.call("cuStreamSynchronize", begin + 23, 10, "cuda_driver")
        builder.operator("aten::relu", begin + 80, 40)
        builder.launch((begin + 90, 5), (begin + 100, 7))
    builder.operator("aten::mm", 2500, 300)  # after the steps
    return builder


def test_an_operator_costs_its_own_time_without_what_it_calls_and_without_waits() -> None:
    trace = two_steps().trace()
    assert figures(operator_costs(trace, STEPS, 9)) == [
        ("aten::mm", 1, 40, 0.471), ("aten::relu", 1, 40, 0.471), ("aten::copy_", 1, 5, 0.059),
    ]  # fmt: skip
    assert len(operator_costs(trace, STEPS, 2)) == 2
    assert operator_costs(Trace(), STEPS, 2) == ()


def test_a_line_costs_all_that_torch_did_for_it_but_waits() -> None:
    assert figures(line_costs(two_steps().trace(), STEPS, 9)) == [
        ("model.py(3): forward", 1, 105, 1)
    ]


def test_without_steps_all_counts_as_one() -> None:
    trace = two_steps().trace()
    found = figures(operator_costs(trace, [(0, 10_000_000)], 9))
    assert found[0] == ("aten::mm", 3, 380, 0.809)


def test_waits_are_told_by_call_operator_and_line_once_for_a_driver_call_inside() -> None:
    trace = two_steps().trace()
    (wait,) = sync_costs(trace, gaps(trace, 0), STEPS, 9)
    assert (wait.call, wait.operator, wait.count, wait.host_wait_us) == (
        "cudaStreamSynchronize", "aten::mm", 1, 15,
    )  # fmt: skip
    assert wait.location == Location("model.py", 3, "forward")


def test_the_longest_waits_come_first_and_only_so_many() -> None:
    builder = TraceBuilder()
    for place, length in enumerate((10, 30, 20)):
        builder.frame(f"train.py({place + 1}): step", place * 100, 90)
        builder.call("cudaDeviceSynchronize", place * 100 + 5, length)
    trace = builder.trace()
    found = sync_costs(trace, gaps(trace, 0), [(0, 1_000_000)], 2)
    assert [(one.location and one.location.line, one.host_wait_us) for one in found] == [
        (2, 30), (3, 20),
    ]  # fmt: skip
    assert sync_costs(trace, gaps(trace, 0), [(900_000, 1_000_000)], 2) == ()


def test_the_device_s_idle_time_is_told_beside_the_wait() -> None:
    builder = TraceBuilder()
    builder.launch((10, 4), (20, 30))
    builder.call("cudaStreamSynchronize", 40, 25)  # 15 us beyond the kernel's end
    builder.launch((70, 4), (80, 9))
    trace = builder.trace()
    (wait,) = sync_costs(trace, gaps(trace, 0), [(0, 40_001), (40_001, 90_000)], 9)
    assert (wait.count, wait.host_wait_us, wait.device_idle_us) == (0.5, 12.5, 7.5)
    assert (wait.operator, wait.location) == ("", None)


@pytest.mark.parametrize(
    ("name", "is_user_s"),
    [
        ("model.py(3): forward", True),
        ("/home/me/my_torch/model.py(3): forward", True),
        ("/usr/lib/python3.11/site-packages/timm/layers.py(3): forward", True),
        ("/usr/lib/python3.11/json/decoder.py(3): decode", False),
        ("torch/nn/modules/module.py(1750): _call_impl", False),
        ("threading.py(981): run", False),
        ("my_threading.py(981): run", True),
        ("<built-in method item of Tensor>", False),
        ("<string>(1): f", False),
        ("forward", False),
    ],
)
def test_the_user_s_frames_are_those_of_no_machinery(name: str, is_user_s: bool) -> None:
    assert is_user_frame(name) is is_user_s


def test_a_frame_says_its_file_its_line_and_its_function() -> None:
    assert location("a (b).py(12): f") == Location("a (b).py", 12, "f")
    assert location("aten::mm") is None


def test_a_moment_s_phase_is_the_outermost_annotation_or_the_backward_pass() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    builder.annotation("## forward ##", 10, 100)
    builder.annotation("attention", 20, 50)
    builder.annotation("nccl:all_reduce", 300, 50)
    builder.annotation("Optimizer.step#AdamW.step", 400, 50)
    builder.operator("autograd::engine::evaluate_function: MmBackward0", 200, 50)
    builder.annotation("loss", 190, 90)
    trace = builder.trace()
    moments = np.array([5, 15, 25, 109, 110, 195, 210, 310, 410]) * 1000
    threads = np.full(len(moments), trace.annotations.thread[0])
    assert phases_of(trace, threads, moments) == [
        "", "forward", "forward", "forward", "", "loss", "the backward pass", "", "the optimizer",
    ]  # fmt: skip
    assert phases_of(trace, threads + 1, moments) == [""] * 9


def test_an_optimizer_s_own_annotation_is_called_the_optimizer_in_both_of_its_calls() -> None:
    builder = TraceBuilder()
    builder.annotation("Optimizer.zero_grad#SGD.zero_grad", 10, 10)
    builder.annotation("my Optimizer.step#", 30, 10)
    trace = builder.trace()
    moments = np.array([15_000, 35_000])
    found = phases_of(trace, np.full(2, trace.annotations.thread[0]), moments)
    assert found == ["the optimizer", "my Optimizer.step"]
