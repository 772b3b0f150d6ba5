"""The rows of strategies -> the one to use, or why none."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace as change

from graphdoctor.strategies.recommend import recommend, with_noise_told, would_pay_more
from graphdoctor.values.finding import Finding
from graphdoctor.values.speed import StrategyOutcome
from tests.support.strategy_rows import (
    outcome,
)


def advised(*rows: StrategyOutcome, findings: tuple[Finding, ...] = ()) -> Any:
    return recommend(rows, findings)


def test_the_fastest_measured_way_of_ours_is_recommended() -> None:
    advice = advised(
        outcome("slow", measured=(1.1, 1.2, 1.3)),
        outcome("fast", measured=(1.9, 2.0, 2.1)),
        outcome("wrong", status="wrong", measured=(8.0, 9.0, 10.0)),
    )
    assert (advice.strategy, advice.code) == ("fast", "use fast\n")
    assert "measured at 2.00x (1.90 to 2.10)" in advice.sentence


def test_of_those_that_are_not_clearly_slower_the_simplest_is_recommended() -> None:
    whole = outcome("whole", measured=(3.15, 3.23, 3.31))
    split = outcome("split-step", measured=(3.22, 3.30, 3.38))
    clear = outcome("split-step", measured=(3.60, 3.70, 3.80))
    assert advised(whole, split).strategy == "whole"
    assert advised(whole, clear).strategy == "split-step"


def test_rows_are_compared_by_the_time_of_their_step_and_not_by_a_noisy_eager() -> None:
    """As seen on an H200, where a compiler's workers ran beside eager."""
    split = outcome("split-step", measured=(7.9, 8.0, 8.1), eager_us=4100.0)
    segments = outcome("segments", measured=(1.9, 2.0, 2.1), eager_us=4100.0)
    noisy = outcome("reduce-overhead", measured=(13.3, 13.4, 13.5), eager_us=8000.0, is_ours=False)
    advice = advised(split, segments, noisy)
    assert advice.strategy == "split-step"  # 512 us, against 597 us
    alone = advised(segments, outcome("whole", measured=(1, 1, 1), eager_us=4100.0), noisy)
    assert alone.strategy == "reduce-overhead"
    assert "measured at 6.87x (6.82 to 6.92) against the median of all rows'" in alone.sentence
    assert "13.4" not in alone.sentence


def test_steps_whose_own_times_part_are_no_tie_where_eager_wavers() -> None:
    split = outcome("split-step", measured=(1.9, 2.4, 2.9), eager_us=60_000.0)
    compiled = outcome("compiled-split", measured=(2.2, 2.8, 3.8), eager_us=60_000.0)
    assert advised(split, compiled).strategy == "split-step"
    assert compiled.measurement is not None
    sure = change(compiled.measurement, graph_interval_us=(21_300.0, 21_500.0))
    assert advised(split, change(compiled, measurement=sure)).strategy == "split-step"
    surer = change(split.measurement, graph_interval_us=(24_900.0, 25_100.0))
    both = change(split, measurement=surer), change(compiled, measurement=sure)
    assert advised(*both).strategy == "compiled-split"


def test_what_is_faster_than_a_slowed_eager_only_is_not_recommended() -> None:
    usual = [outcome(f"other{n}", measured=(0.9, 1.0, 1.1), eager_us=4000.0) for n in range(2)]
    slowed = outcome("slowed", measured=(1.4, 1.5, 1.6), eager_us=8000.0)
    assert advised(*usual, slowed).strategy == "none"


def test_a_row_with_another_eager_time_says_so_and_pays_later() -> None:
    rows = [outcome(name, measured=(1.9, 2.0, 2.1), eager_us=4100.0) for name in "ab"]
    near = outcome("near", measured=(1.9, 2.0, 2.1), eager_us=4600.0)
    odd = outcome("odd", measured=(3.9, 4.0, 4.1), eager_us=8000.0)
    odd = change(odd, reason="as it is", prepare_s=1.0, break_even_calls=167)
    unmeasured = outcome("unmeasured")
    *same, told = with_noise_told((*rows, near, unmeasured, odd))
    assert same == [*rows, near, unmeasured]
    assert told.reason == (
        "as it is; eager took 8 ms here, 4.1 ms in the others: noise of the machine"
    )
    assert told.measurement == odd.measurement
    assert told.break_even_calls == 426  # 4.35 ms, the median of all, less 2 ms
    assert with_noise_told((odd,)) == (odd,)
    *same, told = with_noise_told((*rows, odd))
    assert same == rows
    assert "4.1 ms in the others" in told.reason
    first, second = with_noise_told((rows[0], odd))
    assert first.reason.startswith("eager took 4.1 ms here, 8 ms in the process of odd")
    assert "4.1 ms in the process of a: noise" in second.reason


def test_a_comparator_is_recommended_only_where_it_is_clearly_faster() -> None:
    ours = outcome("ours", measured=(1.9, 2.0, 2.1))
    near = outcome("compile", measured=(2.0, 2.2, 2.4), is_ours=False)
    far = outcome("compile", measured=(2.9, 3.0, 3.1), is_ours=False)
    assert advised(ours, near).strategy == "ours"
    assert advised(ours, far).strategy == "compile"
    assert (
        "clearly faster than graphdoctor's own best, ours at 2.00x" in advised(ours, far).sentence
    )


def test_what_is_no_faster_is_not_recommended() -> None:
    rows = outcome("same", measured=(0.9, 1.0, 1.1)), outcome("slow", measured=(0.4, 0.5, 0.6))
    advice = advised(*rows)
    assert (advice.strategy, advice.code) == ("none", "")
    assert advice.sentence == "Keep eager: no verified strategy is faster."


def test_ctrl_c_is_the_reason_if_strategies_were_not_tried() -> None:
    cut = change(outcome("later", status="timed-out"), reason="interrupted")
    advice = advised(outcome("wrong", status="wrong"), cut)
    assert advice.sentence == "Keep eager: no strategy was verified before Ctrl-C."


def test_a_busy_gpu_is_the_reason_for_recommending_nothing() -> None:
    busy = Finding("GD301", "not-launch-bound", "replay-is-slow", "", "", "", None)
    assert "the GPU is busy" in advised(outcome("a", predicted=1.01), findings=(busy,)).sentence


def test_a_prediction_that_reaches_below_one_is_told_with_care() -> None:
    assert "it may not be faster" in advised(outcome("a", predicted=1.2)).sentence
    assert "it may not be faster" not in advised(outcome("a", predicted=2.0)).sentence


def test_of_equal_predictions_the_first_is_taken_and_never_what_was_only_planned() -> None:
    planned = outcome("planned", status="planned", predicted=5.0)
    rows = outcome("first", predicted=2.0), outcome("second", predicted=2.0), planned
    assert advised(*rows).strategy == "first"
    script = outcome("script", predicted=9.0, is_ours=False)
    assert advised(script, *rows).strategy == "first"  # not on the strength of a prediction
    assert would_pay_more(rows).startswith("On a GPU, planned can be tried: 5x")
    assert would_pay_more((outcome("first", predicted=4.9), planned)) == ""


def test_no_rows_no_advice() -> None:
    assert recommend((), ()) is None
