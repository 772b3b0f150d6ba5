"""What makes the figures of a trace less certain, on both sides of each limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphdoctor.trace.explain.gaps import gaps, lanes_in
from graphdoctor.trace.explain.verdict import doubts
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.trace import Doubt
from tests.support.traces import TraceBuilder

Change = Callable[[TraceBuilder], object]


def told(builder: TraceBuilder) -> dict[str, Doubt]:
    trace = builder.trace()
    steps, found = find_steps(trace, 0), gaps(trace, 0)
    times = lanes_in(trace, 0, steps.windows, found)
    return {doubt.kind: doubt for doubt in doubts(trace, 0, steps, found, times)}


def plain(launches: int = 100) -> TraceBuilder:
    """One step of launches, each 20 us, whose kernels begin 5 us later."""
    builder = TraceBuilder()
    builder.step(0, 0, 20 * launches + 1_000_000)
    for place in range(launches):
        builder.launch((20.0 * place + 10, 4), (20.0 * place + 15, 10))
    return builder


def test_a_whole_trace_leaves_no_doubt() -> None:
    assert told(plain()) == {}


@pytest.mark.parametrize(("lost", "is_told"), [(2, False), (3, True)])
def test_more_than_one_event_in_fifty_without_a_launch_is_told(lost: int, is_told: bool) -> None:
    builder = plain(100 - lost)
    for place in range(lost):
        builder.kernel(None, 15.0 + 20 * (100 - lost + place), 10)
    found = told(builder)
    assert list(found) == (["lost-launches"] if is_told else [])
    if is_told:
        assert found["lost-launches"].text.startswith("3 of 100 device events have no launch")


@pytest.mark.parametrize(("lost", "is_told"), [(2, False), (3, True)])
def test_more_than_one_launch_in_fifty_without_a_kernel_is_told(lost: int, is_told: bool) -> None:
    builder = plain(100 - lost)
    for place in range(lost):
        builder.call("cudaLaunchKernel", 3000.0 + 20 * place, 4)
    found = told(builder)
    assert list(found) == (["lost-kernels"] if is_told else [])
    if is_told:
        assert found["lost-kernels"].text.startswith("3 of 100 kernel launches have no kernel")


def graph(builder: TraceBuilder, nodes: int) -> None:
    call = builder.call("cudaGraphLaunch", 3000, 4)
    for node in range(nodes):
        builder.kernel(call, 3010.0 + 20 * node, 10)


@pytest.mark.parametrize(
    ("nodes", "kinds"), [(0, ["incomplete-graphs"]), (1, []), (2, ["graph-nodes-traced"])]
)
def test_a_graph_without_kernels_is_incomplete_and_one_of_many_is_stretched(
    nodes: int, kinds: list[str]
) -> None:
    builder = plain()
    graph(builder, nodes)
    assert list(told(builder)) == kinds


def test_launches_of_graphs_outside_of_the_steps_are_nobody_s_doubt() -> None:
    builder = plain()
    builder.call("cudaGraphLaunch", 2_000_000, 4)
    assert told(builder) == {}


@pytest.mark.parametrize(
    ("gap_us", "more", "is_told"),
    [(200, 0, False), (201, 0, True), (201, 9_000, True), (201, 12_000, False)],
)
def test_queued_work_that_waits_longer_than_any_scheduler_lets_it_is_told(
    gap_us: float, more: float, is_told: bool
) -> None:
    """Beyond 200 us; and only where that is more than one fiftieth of the time."""
    builder = TraceBuilder()
    builder.launch((10, 4), (20, 30 + more))
    builder.launch((16, 4), (50 + more + gap_us, 10))
    assert ("idle-with-work-queued" in told(builder)) is is_told


@pytest.mark.parametrize(("waiting", "is_told"), [(899, False), (900, True)])
def test_a_queue_of_nine_hundred_is_full(waiting: int, is_told: bool) -> None:
    builder = TraceBuilder()
    for place in range(waiting + 1):
        builder.launch((10.0 + place * 2, 1), (5_000.0 + place * 2, 1))
    found = told(builder)
    assert ("queue-full" in found) is is_told
    if is_told:
        assert found["queue-full"].corrected
        assert "at 1 launches by the number of queued kernels" in found["queue-full"].text


def test_the_profiler_s_own_word_of_a_full_queue_is_taken() -> None:
    builder = plain()
    builder.overhead("Command Buffer Full", 50, 5)
    assert "(1 times as the profiler says)" in told(builder)["queue-full"].text
    builder = plain()
    builder.overhead("Buffer Flush", 50, 5)
    assert told(builder) == {}


@pytest.mark.parametrize(("early_us", "is_told"), [(1.0, False), (1.5, True)])
def test_a_kernel_a_microsecond_before_its_launch_tells_of_clocks_that_disagree(
    early_us: float, is_told: bool
) -> None:
    builder = plain()
    builder.launch((3000, 4), (3000 - early_us, 10))
    found = told(builder)
    assert ("clock-skew" in found) is is_told
    if is_told:
        assert found["clock-skew"].text.startswith("1 device events begin before their launch")
        assert "by up to 2 us" in found["clock-skew"].text


def test_steps_that_do_not_count_are_told_with_the_first_and_its_reason() -> None:
    builder = TraceBuilder()
    for number, kernels in enumerate((4, 0, 4, 9, 4)):
        builder.step(number, 1000.0 * number, 900)
        for place in range(kernels):
            begin = 1000.0 * number + 20 * place
            builder.launch((begin + 10, 4), (begin + 15, 10))
    doubt = told(builder)["steps-left-out"]
    assert doubt.corrected
    assert doubt.text.startswith("2 of 5 steps are left out; ProfilerStep#1: it launched nothing")
