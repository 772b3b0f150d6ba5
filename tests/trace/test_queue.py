"""How much launched work waits for the device, and what is launched by which call."""

from __future__ import annotations

import pytest

from graphdoctor.trace.explain.hosts import depth_at_launch, launch_totals, queue
from tests.support.traces import TraceBuilder


def ahead(count: int) -> TraceBuilder:
    """Launches at 100, 110, ... us; kernels of 100 us one after the other from 102 us on."""
    builder = TraceBuilder()
    for place in range(count):
        builder.launch((100 + place * 10, 4), (102 + place * 100, 100))
    return builder


def test_a_launch_waits_in_the_queue_until_its_kernel_begins() -> None:
    calls, depth = depth_at_launch(ahead(4).trace(), 0)
    assert (calls.tolist(), depth.tolist()) == ([0, 1, 2, 3], [0, 0, 1, 2])


def test_a_kernel_that_begins_at_a_launch_is_no_longer_in_the_queue() -> None:
    builder = TraceBuilder()
    builder.launch((100, 4), (110, 5))
    builder.launch((110, 4), (120, 5))
    builder.launch((119, 4), (130, 5))
    assert depth_at_launch(builder.trace(), 0)[1].tolist() == [0, 0, 1]


def test_all_kernels_of_a_graph_are_in_the_queue_and_a_clock_that_is_ahead_makes_none_negative() -> (
    None
):
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 100, 4)
    for node in range(3):
        builder.kernel(graph, 120 + node * 10, 5)
    builder.launch((110, 4), (105, 5))
    assert depth_at_launch(builder.trace(), 0)[1].tolist() == [0, 2]


def test_the_depth_is_drawn_in_48_points_from_the_first_window_to_the_last() -> None:
    """One point each 10 us says the most that waited until its end."""
    windows = [(100_000, 200_000), (300_000, 580_000)]
    found = queue(ahead(4).trace(), 0, windows)
    assert len(found.points) == 48
    assert [point.at_us for point in found.points[:3]] == [0, 10, 20]
    # Issued at 100, 110, 120 and 130 us; begun at 102, 202, 302 and 402 us.
    depths = [point.depth for point in found.points]
    assert depths[:4] == [1, 2, 3, 3]
    assert depths[9:12] == [3, 3, 2]
    assert depths[19:22] == [2, 2, 1]
    assert depths[29:32] == [1, 1, 0]
    assert found.most == 3


def test_the_usual_delay_is_from_a_call_to_its_kernel_without_those_of_graphs() -> None:
    builder = TraceBuilder()
    for start, delay in ((100, 4), (200, 6), (300, 20)):
        builder.launch((start, 2), (start + delay, 3))
    graph = builder.call("cudaGraphLaunch", 400, 4)
    builder.kernel(graph, 490, 5)
    builder.kernel(graph, 499, 5)
    assert queue(builder.trace(), 0, [(0, 10**6)]).median_delay_us == 6


def test_of_graphs_alone_no_delay_is_told_and_without_windows_nothing() -> None:
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 400, 4)
    for node in range(2):
        builder.kernel(graph, 490 + node * 9, 5)
    trace = builder.trace()
    assert queue(trace, 0, [(0, 10**6)]).median_delay_us is None
    assert queue(trace, 0, []).points == queue(trace, 3, [(0, 10**6)]).points == ()


def test_what_each_call_launches_is_counted_by_step_with_most_events_first() -> None:
    builder = TraceBuilder()
    for step in range(2):
        begin = 1000.0 * step
        builder.launch((begin + 10, 4), (begin + 20, 6))
        graph = builder.call("cudaGraphLaunch", begin + 30, 8)
        for node in range(3):
            builder.kernel(graph, begin + 40 + node * 10, 5)
    builder.launch((9000, 4), (9010, 6))  # after the last step
    found = launch_totals(builder.trace(), 0, [(0, 1_000_000), (1_000_000, 2_000_000)])
    assert [(one.call, one.launches, one.events, one.host_us, one.device_us) for one in found] == [
        ("cudaGraphLaunch", 1, 3, 8, 15),
        ("cudaLaunchKernel", 1, 1, 4, 6),
    ]


@pytest.mark.parametrize("device", [0, 1])
def test_a_device_has_its_own_launches(device: int) -> None:
    builder = TraceBuilder()
    builder.launch((10, 4), (20, 6))
    for start in (30, 50):
        builder.kernel(builder.call("cudaLaunchKernel", start, 4), start + 9, 7, device=1)
    (total,) = launch_totals(builder.trace(), device, [(0, 10**6)])
    assert (total.launches, total.device_us) == ((1, 6), (2, 14))[device]
