"""What the profiler saw becomes counts, shares and rates with an interval."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.measure.watch.sampling import EXPECTED_COST_S, SHARE, DutyCycle, Seen, Windows

EAGER = [
    Seen("cudaLaunchKernel", False, 1),
    Seen("void at::native::vectorized_elementwise_kernel", True, 1),
    Seen("cuLaunchKernelEx", False, 2),
    Seen("triton_poi_fused", True, 2),
    Seen("cudaMemcpyAsync", False, 3),
    Seen("Memcpy DtoH (Device -> Pageable)", True, 3),
    Seen("cudaStreamSynchronize", False, 4),
    Seen("cudaLaunchHostFunc", False, 5),
    Seen("cudaStreamIsCapturing", False, 6),
]
GRAPH = [
    Seen("cudaGraphLaunch", False, 10),
    *(Seen(f"kernel_{number}", True, 10) for number in range(5)),
    Seen("Memcpy DtoD (Device -> Device)", True, 10),
]


def read(*windows: list[Seen], seen_s: float = 0.5):
    sums = Windows()
    for events in windows:
        sums.add(events, seen_s)
    return sums.read()


def test_calls_and_operations_are_told_apart() -> None:
    calls = read(EAGER)
    assert (calls.launches, calls.graph_launches, calls.operations) == (2, 0, 3)
    assert calls.operations_in_graphs == 0
    assert calls.syncs == {"cudaStreamSynchronize": 1}
    assert calls.copies == {"device to host": 1}


def test_operations_of_a_graph_are_in_it_also_where_its_launch_was_before_the_window() -> None:
    both = read(EAGER + GRAPH)
    assert (both.operations_in_graphs, both.operations, both.graph_launches) == (6, 9, 1)
    assert read(GRAPH[1:]).operations_in_graphs == 6
    assert both.copies == {"device to host": 1, "on the device": 1}


def test_a_graph_of_one_kernel_counts_as_a_graph() -> None:
    assert read([Seen("cudaGraphLaunch", False, 1), Seen("k", True, 1)]).operations_in_graphs == 1


def test_waits_that_the_profiler_shows_on_the_device_are_no_operations() -> None:
    assert read([Seen("Stream Wait Event", True, 1)]).operations == 0


def test_rates_are_those_of_the_windows_and_have_an_interval_from_the_third_on() -> None:
    one = read(EAGER)
    assert one.launch_rate is not None
    assert (one.launch_rate.per_s, one.launch_rate.low) == (4.0, None)
    three = read(EAGER, EAGER + EAGER, EAGER)
    rate = three.launch_rate
    assert rate is not None and rate.low is not None and rate.high is not None
    assert rate.per_s == pytest.approx(16 / 3)
    half = 1.96 * (16 / 3 / 3) ** 0.5  # launches a second are 4, 8 and 4: their variance is 16/3
    assert (rate.low, rate.high) == pytest.approx((16 / 3 - half, 16 / 3 + half))
    assert (three.windows, three.seen_s, three.launches) == (3, 1.5, 8)


def test_equal_windows_have_an_interval_of_no_width() -> None:
    rate = read(EAGER, EAGER, EAGER, EAGER).sync_rate
    assert rate is not None and (rate.low, rate.per_s, rate.high) == (2.0, 2.0, 2.0)


def test_an_idle_program_has_rates_of_zero() -> None:
    idle = read([], [], [])
    assert idle.launch_rate is not None and idle.launch_rate.high == 0.0
    assert idle.operations == 0 and idle.syncs == {}


def test_copies_are_not_known_where_launches_were_seen_and_none_of_their_work() -> None:
    """As beside other processes that keep the GPU busy: what was launched ran after the windows."""
    for launch in ("cudaLaunchKernel", "cudaGraphLaunch"):
        calls = read([Seen(launch, False, 1), Seen("cudaMemcpyAsync", False, 2)])
        assert calls.lacks_work and calls.copy_rate is None and calls.launch_rate is not None
    for known in ([], EAGER, GRAPH[1:]):
        assert not read(known).lacks_work and read(known).copy_rate is not None


def test_nothing_is_known_without_a_window() -> None:
    assert read().launch_rate is None


costs = st.lists(st.floats(0.001, 20.0), min_size=1, max_size=50)


def starts(costs_s: list[float], start_s: float = 0.0) -> list[tuple[float, float, float]]:
    """For each window: when it opens, what those before have cost, and what it costs; by a clock of its own."""
    duty, now_s, spent_s, seen = DutyCycle(start_s), start_s, 0.0, []
    for cost_s in costs_s:
        now_s = duty.due_s
        seen.append((now_s - start_s, spent_s, cost_s))
        now_s += cost_s
        spent_s += cost_s
        duty.pay(now_s, cost_s)
    assert duty.spent_s == spent_s
    return seen


@given(costs)
def test_what_windows_cost_is_below_their_share_whenever_one_opens(costs_s: list[float]) -> None:
    for at_s, spent_s, _ in starts(costs_s):
        assert spent_s <= SHARE * at_s < 0.01 * at_s


@given(st.lists(st.floats(0.001, EXPECTED_COST_S), min_size=1, max_size=50))
def test_windows_that_cost_what_is_expected_never_take_a_hundredth_not_even_at_their_end(
    costs_s: list[float],
) -> None:
    for at_s, spent_s, cost_s in starts(costs_s):
        assert spent_s + cost_s <= 0.01 * (at_s + cost_s)


def test_a_window_that_costs_more_puts_the_next_one_off() -> None:
    cheap, dear = starts([0.1, 0.1]), starts([3.0, 0.1])
    assert dear[1][0] - dear[0][0] >= 3.0 / SHARE > cheap[1][0] - cheap[0][0]


def test_windows_do_not_keep_step_with_the_program() -> None:
    opened = [at_s for at_s, _, _ in starts([0.1] * 10)]
    rests = {round(after - before, 6) for before, after in pairwise(opened)}
    assert len(rests) == 9


def test_the_clock_of_a_program_may_stand_anywhere() -> None:
    assert starts([0.1, 0.2], 1e6)[1][1:] == (0.1, 0.2)
