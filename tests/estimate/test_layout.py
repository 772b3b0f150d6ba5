"""Pieces on two lanes: kernels of one operator share its time, and graphs have gaps between their nodes."""

from __future__ import annotations

import pytest
from msgspec import structs

from graphdoctor.estimate.gpus import Figure, load_profile
from graphdoctor.estimate.two_lanes import Case, Piece, lay_out, place, run, work_of
from graphdoctor.values.figures import Range


def known(value: float) -> Figure:
    return Figure(value, value, value, "a test")


PROFILE = structs.replace(
    load_profile("h100"),
    launch_us=known(2.0),
    launch_latency_us=known(0.0),
    node_gap_us=known(1.0),
    queue_gap_us=known(0.0),
    sync_us=known(3.0),
)
MIDDLE = Case("mid", "mid", 1.0, 1.0)


def piece(host_us: float, device_us: float, launches: int = 1, **changes: object) -> Piece:
    return Piece(Range.exact(host_us), Range.exact(device_us), launches, **changes)


def test_kernels_of_one_operator_share_its_time_and_its_host_s() -> None:
    (one,) = place([piece(10.0, 30.0)], PROFILE, MIDDLE)
    (three,) = place([piece(10.0, 30.0, 3)], PROFILE, MIDDLE)
    assert (one.host_us, one.device_us) == (three.host_us, three.device_us) == (10.0, 30.0)
    assert one.device_at_us == 10.0 - 2.0  # its launch is the last that the host does for it
    assert three.device_at_us == 10.0 - 3 * 2.0


def test_a_graph_has_a_gap_between_any_two_nodes() -> None:
    (one,) = place([piece(10.0, 30.0, nodes=1)], PROFILE, MIDDLE)
    (five,) = place([piece(10.0, 30.0, nodes=5)], PROFILE, MIDDLE)
    assert (one.device_us, five.device_us) == (30.0, 34.0)


def test_the_host_waits_after_a_sync_and_before_what_stops_it() -> None:
    after = place([piece(10.0, 30.0, is_sync=True), piece(10.0, 5.0)], PROFILE, MIDDLE)
    before = place([piece(10.0, 30.0), piece(10.0, 5.0, waits_before=True)], PROFILE, MIDDLE)
    assert [one.waited_us for one in after] == [one.waited_us for one in before] == [31.0, 0.0]
    assert [one.host_at_us for one in after] == [0.0, 41.0]
    free = place([piece(10.0, 30.0), piece(10.0, 5.0)], PROFILE, MIDDLE)
    assert [(one.waited_us, one.host_at_us) for one in free] == [(0.0, 0.0), (0.0, 10.0)]


def test_what_launches_nothing_takes_the_host_s_time_alone() -> None:
    first, second = place([piece(10.0, 0.0, 0), piece(10.0, 5.0)], PROFILE, MIDDLE)
    assert (first.host_us, first.device_us, second.host_at_us) == (10.0, 0.0, 10.0)
    assert place([], PROFILE, MIDDLE) == []


@pytest.mark.parametrize(
    ("host_us", "device_us", "span_us"), [(10.0, 30.0, 90.0), (40.0, 30.0, 120.0)]
)
def test_of_many_steps_in_a_row_the_slower_lane_sets_the_pace(
    host_us: float, device_us: float, span_us: float
) -> None:
    step = [piece(host_us, device_us, 2) for _ in range(3)]
    laid = lay_out(step, PROFILE, MIDDLE)
    assert laid.span_us == pytest.approx(span_us)
    assert (laid.host_us, laid.busy_us) == pytest.approx((3 * host_us, 3 * device_us))


def test_each_end_of_a_range_is_taken_as_far_as_the_case_says() -> None:
    wide = Piece(Range(4.0, 8.0, 16.0), Range(10.0, 20.0, 80.0), 1)
    for case, host_us, device_us in (
        (Case("low", "high", 1.0, 1.0), 4.0, 80.0),
        (Case("high", "low", 0.5, 0.5), 11.31, 14.14),
        (Case("high", "low", 0.0, 1.0), 8.0, 10.0),
    ):
        (found,) = place([wide], PROFILE, case)
        assert (found.host_us, found.device_us) == (host_us, device_us)


def test_a_wait_before_anything_else_costs_the_way_back_alone() -> None:
    (only,) = place([piece(10.0, 5.0, waits_before=True)], PROFILE, MIDDLE)
    assert (only.host_at_us, only.host_us, only.device_us) == (3.0, 10.0, 5.0)


def test_a_kernel_that_takes_no_time_takes_none() -> None:
    first, second = place([piece(10.0, 0.0), piece(10.0, 5.0)], PROFILE, MIDDLE)
    assert (first.device_us, second.device_us) == (0.0, 5.0)


@pytest.mark.parametrize("waits_at", [0, 2, 4])
def test_a_step_that_waits_takes_as_long_each_time(waits_at: int) -> None:
    """What one of many steps takes is then known from two of them."""
    step = [piece(10.0, 45.0, is_sync=index == waits_at) for index in range(5)]
    many = [run(work_of(step * times, PROFILE, MIDDLE)).span_us for times in (8, 9)]
    assert lay_out(step, PROFILE, MIDDLE).span_us == pytest.approx(many[1] - many[0])
