"""Speed-ups predicted from a step's own measured times: held to what must hold for any machine."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
from msgspec import structs

from graphdoctor.estimate import Calls, Observed, fitted_speedup
from graphdoctor.estimate.fitted import (
    BLOCK_US,
    MIDDLE,
    corners_from_eager,
    factors_of,
    profile_scaled,
    scaled_piece,
)
from graphdoctor.estimate.gpus import Figure, load_profile
from graphdoctor.estimate.ranges import PARTS_FROM_EAGER, SEGMENTS_FROM_EAGER, SPLIT_FROM_EAGER
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.estimate.two_lanes import lay_out
from graphdoctor.measure import wall_clock
from graphdoctor.values.recording import Iteration
from tests.support.builders import iteration, op, tensor

H200 = load_profile("h200")
COUNT = 100
CALL = Figure(400.0, 400.0, 400.0, "made up")


def chain() -> Iteration:
    return iteration(
        op("aten.mul.Tensor", [tensor(index, 1000), 2.0], [tensor(index + 1, 1000)])
        for index in range(COUNT)
    )


def test_a_busy_device_leaves_a_graph_nothing_to_gain() -> None:
    found = fitted_speedup(
        chain(), H200, None, observed=Observed(wall_us=10_000.0, busy_us=9_990.0)
    )
    assert 0.97 < found.mid < 1.02


def test_a_launch_bound_step_gains_what_the_host_costs_beyond_the_device() -> None:
    observed = Observed(wall_us=2_000.0, busy_us=200.0)
    found = fitted_speedup(chain(), H200, None, observed=observed)
    node_gaps_us = (COUNT - 1) * H200.node_gap_us.mid
    assert found.mid == pytest.approx(2_000 / (200 + node_gaps_us), rel=0.2)
    assert found.low <= found.mid <= found.high


def test_a_slower_host_makes_a_graph_gain_more() -> None:
    gains = [
        fitted_speedup(chain(), H200, None, observed=Observed(wall_us, busy_us=200.0)).mid
        for wall_us in (500.0, 1_000.0, 4_000.0)
    ]
    assert gains == sorted(gains) and gains[0] < gains[-1] / 4


def test_half_of_the_step_as_a_graph_leaves_the_other_half_of_the_host_time() -> None:
    observed = Observed(wall_us=2_000.0, busy_us=200.0)
    half = [tuple(range(COUNT // 2))]
    found = fitted_speedup(chain(), H200, half, observed=observed)
    assert found.mid == pytest.approx(2.0, rel=0.1)


def test_nothing_as_a_graph_changes_nothing() -> None:
    found = fitted_speedup(chain(), H200, [], observed=Observed(wall_us=2_000.0, busy_us=200.0))
    assert found.mid == pytest.approx(1.0, abs=1e-3)


def test_calling_the_graphs_takes_a_slower_step_longer_by_half_of_what_it_is_slower() -> None:
    """In ratio: the other half is taken to be the step's own operators."""
    half = [tuple(range(COUNT // 2))]
    left = []
    for wall_us in (2_000.0, 4_000.0):
        observed = Observed(wall_us, busy_us=20.0)
        free, called = (
            wall_us / fitted_speedup(chain(), H200, half, observed=observed, calls=calls).mid
            for calls in (Calls(), Calls(trained_module=2))
        )
        left.append(called - free)
    assert left[1] == pytest.approx(2**0.5 * left[0], rel=0.05)


def test_of_few_calls_in_a_row_each_waits_for_the_first_replay() -> None:
    """The host takes 400 us to call a graph of 4 ms, which only many calls in a row hide."""
    called = Calls(segment=1)
    profile = structs.replace(H200, call_us=structs.replace(H200.call_us, segment=CALL))

    def taken_us(most_calls: int) -> float:
        observed = Observed(wall_us=4_000.0, busy_us=4_000.0, most_calls=most_calls)
        found = fitted_speedup(chain(), profile, None, observed=observed, calls=called)
        return 4_000.0 / found.mid

    once, thrice = taken_us(1), taken_us(3)
    assert once - thrice == pytest.approx((once - taken_us(2)) * 4 / 3, rel=0.05)
    assert once > thrice > 4_000.0


def test_a_block_of_calls_is_as_long_as_the_one_that_is_measured() -> None:
    assert BLOCK_US == 1e6 * wall_clock._LEAST_BLOCK_S


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_launches_take_so_many_times_longer_as_the_host(times: float) -> None:
    launch, own = profile_scaled(H200, times).launch_us, H200.launch_us
    assert (launch.low, launch.mid, launch.high) == (times * own.mid,) * 3
    assert profile_scaled(H200, times).graph_launch_us == H200.graph_launch_us


def test_the_factors_give_the_step_its_measured_times_again() -> None:
    observed = Observed(wall_us=3_000.0, busy_us=300.0)
    pieces = tuple(eager_pieces(chain().ops, H200))
    factors = factors_of(pieces, H200, observed)
    here = profile_scaled(H200, factors.host)
    laid = lay_out([scaled_piece(one, factors) for one in pieces], here, MIDDLE)
    assert laid.span_us == pytest.approx(observed.wall_us, rel=1e-5)
    assert sum(one.device_us.mid for one in pieces) * factors.device == pytest.approx(300.0)


def test_a_step_without_work_of_the_device_leaves_its_speed_as_it_is() -> None:
    assert factors_of((), H200, Observed(wall_us=10.0, busy_us=5.0)).device == 1.0


def test_the_likely_gain_lies_between_those_of_the_profile_s_bounds() -> None:
    observed = Observed(wall_us=2_000.0, busy_us=200.0)
    found = corners_from_eager(chain(), H200, None, observed=observed)
    assert found.low < found.mid < found.high


def no_worse_than_likely(struct: Any) -> Any:
    changes = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Figure):
            changes[name] = structs.replace(value, high=value.mid)
        elif hasattr(value, "__struct_fields__"):
            changes[name] = no_worse_than_likely(value)
    return structs.replace(struct, **changes)


def test_the_best_case_is_that_of_a_fast_host_with_a_fast_device() -> None:
    """Figures of time: how bad they may be moves the other end alone."""
    observed = Observed(wall_us=2_000.0, busy_us=200.0)
    found = corners_from_eager(chain(), H200, None, observed=observed)
    better = corners_from_eager(chain(), no_worse_than_likely(H200), None, observed=observed)
    assert better.high == pytest.approx(found.high)
    assert better.low > found.low


def test_each_way_of_making_graphs_has_the_width_that_its_measurements_asked_for() -> None:
    """A split step leaves next to nothing to Python, so that its range is narrow."""
    observed = Observed(wall_us=2_000.0, busy_us=200.0)
    half = [tuple(range(COUNT // 2))]
    for calls, width in (
        (Calls(glue=1), SPLIT_FROM_EAGER),
        (Calls(module=1), PARTS_FROM_EAGER),
        (Calls(trained_module=1), PARTS_FROM_EAGER),
        (Calls(segment=1), SEGMENTS_FROM_EAGER),
        (Calls(trained_segment=1), SEGMENTS_FROM_EAGER),
    ):
        found = fitted_speedup(chain(), H200, half, observed=observed, calls=calls)
        assert log(found.high / found.mid) == pytest.approx(width.least)
        assert log(found.mid / found.low) == pytest.approx(width.least)
    assert SPLIT_FROM_EAGER.least < min(PARTS_FROM_EAGER.least, SEGMENTS_FROM_EAGER.least)
