"""Timing with a clock that the test turns: blocks, pairs, the interval's coverage, the word."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import comb, exp
from statistics import NormalDist

import pytest
import torch

from graphdoctor.measure import wall_clock as measure_module
from graphdoctor.measure.wall_clock import (
    Blocks,
    GpuState,
    MedianInterval,
    lower_rank,
    measure,
    median_interval,
    word_for,
)


class FakeTime:
    """A clock that stands still unless a step is called."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def step(self, name: str, cost_s: Callable[[], float]) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name)
            self.now_s += cost_s()

        return call

    def constant(self, name: str, cost_s: float) -> Callable[[], None]:
        return self.step(name, lambda: cost_s)


def test_a_constant_speed_up_is_measured_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure_module, "gpu_state", lambda: None)
    time = FakeTime()

    result = measure(
        time.constant("eager", 300e-6),
        time.constant("graph", 100e-6),
        budget_s=2.0,
        clock=time.clock,
    )

    assert result.eager_us == pytest.approx(300.0)
    assert result.graph_us == pytest.approx(100.0)
    assert result.speedup == pytest.approx(3.0)
    assert result.speedup_low == pytest.approx(3.0) == result.speedup_high
    assert result.graph_interval_us == pytest.approx((100.0, 100.0))
    assert (result.word, result.confidence) == ("faster", 0.95)
    assert (result.gpu, result.clock_note) == ("no GPU", "")


def test_a_block_lasts_long_enough_and_the_budget_is_kept() -> None:
    time = FakeTime()

    result = measure(
        time.constant("eager", 200e-6),
        time.constant("graph", 50e-6),
        budget_s=1.0,
        clock=time.clock,
    )

    assert result.calls_per_block * 50e-6 >= 0.01
    assert result.blocks >= 6
    assert 0.5 < time.now_s < 1.2


def test_slow_steps_are_measured_six_times_whatever_the_budget() -> None:
    time = FakeTime()

    result = measure(
        time.constant("eager", 3.0), time.constant("graph", 3.0), budget_s=0.1, clock=time.clock
    )

    assert (result.blocks, result.calls_per_block) == (6, 1)
    assert result.word == "no change"


def test_a_step_that_takes_no_time_ends() -> None:
    time = FakeTime()

    result = measure(
        time.constant("eager", 0.0), time.constant("graph", 0.0), budget_s=0.1, clock=time.clock
    )

    assert result.word == "no change"


def test_blocks_are_paired_and_their_order_is_mixed() -> None:
    time = FakeTime()

    result = measure(
        time.constant("e", 0.02), time.constant("g", 0.02), budget_s=10.0, clock=time.clock
    )

    # Each block is one untimed call and one timed; planning comes first.
    blocks = time.calls[-2 * 2 * result.blocks :]
    assert blocks[::2] == blocks[1::2]
    pairs = {"".join(blocks[start : start + 4 : 2]) for start in range(0, len(blocks), 4)}
    assert pairs == {"eg", "ge"}


def test_a_drift_of_the_clock_speed_does_not_reach_the_ratio() -> None:
    time = FakeTime()

    def heat() -> float:
        return 1.0 + time.now_s  # twice as slow after each second

    result = measure(
        time.step("eager", lambda: 2e-4 * heat()),
        time.step("graph", lambda: 1e-4 * heat()),
        budget_s=3.0,
        clock=time.clock,
    )

    assert result.speedup == pytest.approx(2.0, rel=0.05)
    assert result.speedup_low <= 2.0 <= result.speedup_high


def test_a_step_that_wears_out_is_prepared_again_in_time() -> None:
    time = FakeTime()
    position = {"now": 0}

    def step() -> None:
        position["now"] += 1
        assert position["now"] <= 4, "past the end of the cache"
        time.now_s += 100e-6

    def prepare() -> None:
        position["now"] = 0
        time.now_s += 0.002

    result = measure(
        step,
        step,
        budget_s=0.1,
        clock=time.clock,
        blocks=Blocks(most_calls=4, prepare=prepare),
    )

    assert result.calls_per_block == 3
    assert result.eager_us == pytest.approx(100.0)
    # Preparing takes most of the time, and counts towards the budget.
    assert time.now_s < 0.13


def test_the_user_s_random_numbers_are_not_drawn_from() -> None:
    time = FakeTime()
    random.seed(1)
    state = random.getstate()

    measure(time.constant("e", 0.1), time.constant("g", 0.1), budget_s=1.0, clock=time.clock)

    assert random.getstate() == state


def test_a_slowed_down_gpu_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeTime()
    states = iter([GpuState(1980, (), 0), GpuState(1200, ("heat",), 0), GpuState(1980, (), 0)])
    monkeypatch.setattr(measure_module, "gpu_state", lambda: next(states))

    result = measure(
        time.constant("e", 0.1), time.constant("g", 0.1), budget_s=1.0, clock=time.clock
    )

    assert result.clock_note == "the GPU was slowed down by heat (1200 to 1980 MHz)"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.9, 1.1, "no change"),
        (1.0, 1.1, "no change"),
        (0.9, 1.0, "no change"),
    ],
)
def test_the_word_claims_nothing_while_the_interval_holds_one(
    low: float, high: float, word: str
) -> None:
    assert word_for(MedianInterval(1.0, low, high)) == word


@pytest.mark.parametrize("count", [6, 7, 8, 15, 30, 60, 101])
def test_the_rank_is_the_largest_that_keeps_the_confidence(count: int) -> None:
    def missed(rank: int) -> float:
        return 2 * sum(comb(count, below) for below in range(rank)) / 2**count

    rank = lower_rank(count, 0.95)

    assert missed(rank) <= 0.05 < missed(rank + 1)


def test_known_ranks() -> None:
    # From the tables of the sign test, two-sided 5 %.
    assert [lower_rank(count, 0.95) for count in (5, 6, 9, 12, 20, 25, 30)] == [
        0, 1, 2, 3, 6, 8, 10,
    ]  # fmt: skip


def test_the_bounds_are_those_order_statistics() -> None:
    sample = [float(value) for value in range(1, 31)]
    random.Random(0).shuffle(sample)

    assert median_interval(sample) == MedianInterval(15.5, 10.0, 21.0)


def test_a_sample_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="5 values cannot bound"):
        median_interval([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("count", [6, 13, 30])
def test_the_interval_covers_the_true_median_as_often_as_it_says(count: int) -> None:
    noise = random.Random(count)

    def draw() -> float:
        return 3.9 if noise.random() < 0.05 else 1.3 * exp(noise.gauss(0.0, 0.05))

    # The outliers all lie above: the median is where 0.5 / 0.95 of the others lie below.
    true = 1.3 * exp(0.05 * NormalDist().inv_cdf(0.5 / 0.95))
    trials = 4000
    covered = sum(
        interval.low <= true <= interval.high
        for interval in (median_interval([draw() for _ in range(count)]) for _ in range(trials))
    )

    exact = 1 - 2 * sum(comb(count, below) for below in range(lower_rank(count, 0.95))) / 2**count
    assert exact >= 0.95
    # Three standard deviations of the simulation; one rank too many would miss by far more.
    assert covered / trials == pytest.approx(exact, abs=3 * (0.05 * 0.95 / trials) ** 0.5)


def test_whole_measurements_cover_the_true_ratio() -> None:
    covered = 0
    trials = 300
    for trial in range(trials):
        time, noise = FakeTime(), random.Random(trial)

        def jitter(noise: random.Random = noise) -> float:
            return exp(noise.gauss(0.0, 0.1)) * (4.0 if noise.random() < 0.05 else 1.0)

        result = measure(
            time.step("eager", lambda jitter=jitter: 0.026 * jitter()),
            time.step("graph", lambda jitter=jitter: 0.020 * jitter()),
            budget_s=1.5,
            clock=time.clock,
        )
        covered += result.speedup_low <= 1.3 <= result.speedup_high

    assert covered / trials >= 0.92
