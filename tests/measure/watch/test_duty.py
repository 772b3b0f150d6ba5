"""Windows are paid for before the next one opens, whatever they cost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.measure.watch.sampling import EXPECTED_COST_S, SHARE, DutyCycle

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
