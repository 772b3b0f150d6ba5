"""The host's launches in order: from which moment on the host was on the way to each."""

from __future__ import annotations

import pytest

from graphdoctor.trace.explain.issuing import Launches, actual_ns, launches_of
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
