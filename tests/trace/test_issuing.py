"""The host's launches in order: from which moment on the host was on the way to each."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace import Trace
from graphdoctor.trace.explain.replay import (
    Launches,
    actual_ns,
    events_before,
    launch_ns,
    launches_of,
    waits_after,
)
from graphdoctor.trace.steps import find_steps
from tests.support.traces import TraceBuilder


def launches(pause_us: float) -> Launches:
    """Three steps of two launches each, 10 us into the step and 40 us later, with pauses between."""
    builder = TraceBuilder()
    for number in range(3):
        begin = 1000.0 + number * (100.0 + pause_us)
        builder.step(number, begin, 100.0)
        for start in (begin + 10, begin + 50):
            builder.launch((start, 4), (start + 6, 5))
    trace = builder.trace()
    found = launches_of(trace, 0, find_steps(trace, 0).all)
    assert found is not None
    return found


def before_us(found: Launches) -> list[float]:
    return ((found.start - found.since) / 1e3).tolist()


def test_steps_that_follow_each_other_leave_no_time_out() -> None:
    found = launches(0.0)
    assert found.step.tolist() == [0, 0, 1, 1, 2, 2]
    assert before_us(found) == [10, 40, 60, 40, 60, 40]


@pytest.mark.parametrize(("pause_us", "is_left_out"), [(999.0, False), (1000.0, True)])
def test_a_pause_of_a_millisecond_between_steps_is_no_part_of_them(
    pause_us: float, is_left_out: bool
) -> None:
    found = launches(pause_us)
    first = 10.0 if is_left_out else 60.0 + pause_us
    assert before_us(found) == [10, 40, first, 40, first, 40]
    left_out = 2 * (pause_us + 50) if is_left_out else 0.0
    last = int(found.start[-1])
    assert actual_ns(found, last) == last - int(found.since[0]) - left_out * 1e3


def test_the_next_launch_or_the_step_s_end_comes_after_each() -> None:
    found = launches(0.0)
    assert ((found.following - found.start) / 1e3).tolist() == [40, 60, 40, 60, 40, 50]


def test_without_steps_or_launches_there_is_nothing() -> None:
    builder = TraceBuilder()
    builder.step(0, 1000.0, 100.0)
    builder.launch((1010, 4), (1016, 5))
    assert launches_of(builder.trace(), 0, ()) is None
    builder = TraceBuilder()
    builder.kernel(None, 1016, 5)
    trace = builder.trace()
    assert launches_of(trace, 0, find_steps(trace, 0).all) is None


def work(builder: TraceBuilder) -> tuple[Trace, Launches]:
    trace = builder.trace()
    found = launches_of(trace, 0, find_steps(trace, 0).all)
    assert found is not None
    return trace, found


def test_a_launch_reaches_no_further_than_the_next_one_of_another_thread() -> None:
    builder = TraceBuilder()
    builder.launch((100, 30), (140, 5))
    builder.kernel(builder.call("cudaLaunchKernel", 120, 4, thread=5005), 150, 5)
    trace, found = work(builder)
    assert launch_ns(trace, 0, found).tolist() == [20_000, 4_000]


@pytest.mark.parametrize(("ahead", "long_us", "blocked"), [
    (899, 50, 0), (900, 50, 1), (900, 4, 0), (900, 4.5, 1),
])  # fmt: skip
def test_behind_a_full_queue_a_launch_of_more_than_four_usual_ones_is_a_wait(
    ahead: int, long_us: float, blocked: int
) -> None:
    builder = TraceBuilder()
    for place in range(ahead):
        builder.launch((100 + place * 2, 1), (50_000 + place * 10, 9))
    builder.launch((100 + ahead * 2, long_us), (50_000 + ahead * 10, 9))
    trace, found = work(builder)
    assert launch_ns(trace, 0, found)[-1] == (1_000 if blocked else long_us * 1_000)


def test_what_the_profiler_recorded_before_each_launch_is_counted_for_its_thread() -> None:
    """From one launch to the next, the launch itself included, and once more behind the last."""
    builder = TraceBuilder()
    builder.step(0, 100, 200)
    for start in (110, 150):
        builder.operator("aten::mm", start, 20)
        builder.launch((start + 5, 4), (start + 20, 5))
    builder.call("cudaEventRecord", 260, 2)
    builder.call("cudaEventRecord", 130, 2, thread=5005)
    trace, found = work(builder)
    assert events_before(trace, found).tolist() == [2, 2, 1]


def waited(
    builder: TraceBuilder, *last_end_us: float
) -> tuple[list[int], list[bool], list[int], float | None]:
    trace, found = work(builder)
    launch = launch_ns(trace, 0, found)
    ends = np.array([int(end * 1000) for end in last_end_us])
    time, drains, fixed, late = waits_after(trace, found, launch, ends)
    return time.tolist(), drains.tolist(), fixed.tolist(), late


def two_launches(*waits: tuple[float, float], thread: int = 4001) -> TraceBuilder:
    builder = TraceBuilder()
    builder.launch((100, 10), (115, 50))
    for start, length in waits:
        builder.call("cudaStreamSynchronize", start, length, thread=thread)
    builder.launch((300, 10), (315, 50))
    return builder


@pytest.mark.parametrize(
    ("device_end", "drains", "fixed", "late"),
    [(165, True, 0, 5.0), (170, True, 0, 0.0), (171, False, 50_000, None), (119, True, 0, None)],
)
def test_a_wait_in_which_the_device_ran_dry_is_told_from_one_that_it_outlasts(
    device_end: float, drains: bool, fixed: int, late: float | None
) -> None:
    """The host goes on so much later than the device ends, where it was waiting already."""
    found = waited(two_launches((120, 50)), device_end, 365)
    assert found == ([50_000, 0], [drains, False], [fixed, 0], late)


def test_of_several_waits_behind_one_launch_one_that_drained_the_device_decides() -> None:
    assert waited(two_launches((120, 20), (150, 50)), 165, 365)[:3] == (
        [70_000, 0], [True, False], [0, 0],
    )  # fmt: skip


def test_a_wait_that_lasts_into_the_next_launch_ends_with_it() -> None:
    assert waited(two_launches((250, 90)), 165, 365)[0] == [50_000, 0]


def test_waits_before_the_first_launch_and_of_other_threads_are_none_of_the_step_s() -> None:
    builder = two_launches((120, 50), thread=5005)
    builder.call("cudaStreamSynchronize", 50, 20)
    assert waited(builder, 165, 365) == ([0, 0], [False, False], [0, 0], None)
