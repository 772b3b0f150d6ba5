"""When a changed program counts as one with the same results, and what is said where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from graphdoctor.strategies.patch.alike import is_decided, likeness, needs_another, with_times
from graphdoctor.strategies.patch.rerun import Calls, Run
from graphdoctor.values.figures import Range

WEIGHTS = (torch.tensor([1.0, -2.0]), torch.tensor([3.0]))
PLAIN = Run("step 0 loss 1.5000\nstep 1 loss 1.2500\n", True, steps=2, weights=WEIGHTS)
CHANGED = replace(PLAIN, replays=2)


def off_by(run: Run, much: float) -> Run:
    return replace(run, weights=tuple(weight * (1 + much) for weight in WEIGHTS))


def test_equal_text_and_weights_are_the_same_results() -> None:
    found = likeness(PLAIN, CHANGED)
    assert found.is_same and not needs_another(PLAIN, CHANGED)
    assert found.sentence == (
        "printed output is identical (2 lines, timings ignored); its 2 weight tensors after 2 steps are"
        " bitwise equal; 2 calls were replayed."
    )


@pytest.mark.parametrize(
    "pair",
    [
        ("iter 0: loss 2.5, time 12.5ms", "iter 0: loss 2.5, time 3.1ms"),
        ("{'train_runtime': '3.2', 'loss': 1.5}", "{'train_runtime': '0.9', 'loss': 1.5}"),
        ("Epoch 1 loss 0.5 (812 images/s)", "Epoch 1 loss 0.5 (1033 images/s)"),
        ("| ms/batch  7.12 | loss 2.5", "| ms/batch 11.04 | loss 2.5"),
        (" 40%|####  | 4/10 [00:01<00:02, 2.1it/s]", " 70%|###### | 7/10 [00:01<00:01, 9.3it/s]"),
    ],
)
def test_times_may_differ(pair: tuple[str, str]) -> None:
    plain, changed = (replace(CHANGED, printed=f"{each}\n") for each in pair)
    assert likeness(plain, changed).is_same
    worse = replace(changed, printed=changed.printed.replace("loss", "lost"))
    assert likeness(plain, worse).is_same is ("it/s" in pair[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(CHANGED, printed="step 0 loss 1.5000\nstep 1 loss 1.2501\n"),
         "In line 2 of what the changed program printed is `1.2501` instead of `1.2500`."),
        (replace(CHANGED, printed="step 0 loss 1.5000\n"), "instead of `step 1 loss 1.2500`"),
        (off_by(CHANGED, 1e-6), "changed program after 2 steps differ by 1e-06 of the largest weight of a tensor"),
        (replace(CHANGED, replays=0), "no graph was replayed."),
        (replace(CHANGED, mostly_eager={"act": Calls(0, 3, "it reads.")}),
         "no call of `act()` was replayed: it reads."),
        (replace(CHANGED, mostly_eager={"act": Calls(2, 396, "env.state is another object")}),
         "only 2 of 398 calls of `act()` were replayed after the capture: env.state is another object."),
        (replace(CHANGED, exit_code=1), "ended with exit code 1 instead of 0"),
        (replace(CHANGED, failure="KeyError: 'x'"), "The changed program failed: KeyError: 'x'"),
        (Run("step 0 loss 1.5000\n", False), "did not end in time"),
    ],
)  # fmt: skip
def test_any_other_difference_leaves_the_diff_out(changed: Run, words: str) -> None:
    found = likeness(PLAIN, changed, PLAIN)
    assert not found.is_same and words in found.sentence


def test_a_next_run_that_failed_shows_nothing() -> None:
    failed = replace(PLAIN, steps=1, failure="RuntimeError: modified")
    found = likeness(PLAIN, off_by(CHANGED, 1e-3), failed, rounds=True)
    assert not found.is_same and "moved by one unit in the last place, failed" in found.sentence


def test_a_program_that_differs_from_itself_is_held_to_that() -> None:
    again = off_by(replace(PLAIN, printed="step 0 loss 1.5000\nstep 1 loss 1.2502\n"), 1e-6)
    near = off_by(replace(CHANGED, printed="step 0 loss 1.5000\nstep 1 loss 1.2497\n"), -2e-6)
    far = replace(near, printed="step 0 loss 1.5000\nstep 1 loss 1.2600\n")
    assert needs_another(PLAIN, near)
    assert likeness(PLAIN, near, again).is_same
    found = likeness(PLAIN, far, again)
    assert not found.is_same and "more than the program differs by from itself" in found.sentence
    assert not likeness(PLAIN, off_by(near, 1e-3), again).is_same


def test_a_program_whose_own_weights_differ_by_much_shows_nothing() -> None:
    """Ten times what an environment without a seed makes of them would accept any weights."""
    again, near = off_by(PLAIN, 0.5), off_by(CHANGED, 1e-3)
    found = likeness(PLAIN, near, again)
    assert not found.is_same and "two runs of the unchanged program" in found.sentence
    assert likeness(PLAIN, near, off_by(PLAIN, 0.01)).is_same


def test_a_change_that_rounds_may_differ_by_what_rounding_makes_of_the_program() -> None:
    nudged = off_by(replace(PLAIN, printed="step 0 loss 1.5000\nstep 1 loss 1.2502\n"), 1e-6)
    near = off_by(replace(CHANGED, printed="step 0 loss 1.5001\nstep 1 loss 1.2497\n"), -2e-6)
    assert not likeness(PLAIN, near, nudged).is_same
    found = likeness(PLAIN, near, nudged, rounds=True)
    assert found.is_same
    assert (
        "except for 2 numbers: off by at most 0.0002 of the largest in that place, within 10 times what rounding alone "
        "changes, or one unit of the last digit; its weights after 2 steps differ by 2e-06 of the largest weight of a "
        "tensor; up to 1e-05 is accepted, which is 10 times the difference that rounding alone (weights moved "
        "by one unit in the last place) makes in the unchanged program; 2 calls were replayed."
    ) in found.sentence
    for far in (off_by(near, 1e-3), replace(near, printed="step 0 loss 1.6\nstep 1 loss 1.2497\n")):
        assert not likeness(PLAIN, far, nudged, rounds=True).is_same


def test_rounding_moves_numbers_by_a_unit_in_the_last_place_even_where_a_nudge_moved_none() -> None:
    plain = replace(PLAIN, printed="loss 544.926758\n")
    near = off_by(replace(CHANGED, printed="loss 544.926819\n"), 2e-7)
    assert likeness(plain, near, plain, rounds=True).is_same
    assert not likeness(plain, near, plain).is_same
    for far in (replace(near, printed="loss 544.936819\n"), off_by(near, 1e-5)):
        assert not likeness(plain, far, plain, rounds=True).is_same
    doubles = replace(plain, weights=tuple(weight.double() for weight in WEIGHTS))
    assert not likeness(doubles, near, doubles, rounds=True).is_same


def test_a_number_that_is_another_one_in_each_run_allows_nothing_of_others() -> None:
    text = "rate 812 loss 1.5000\nstep 1 loss 1.2500\n"
    plain, nudged = replace(PLAIN, printed=text), replace(PLAIN, printed=text.replace("812", "300"))
    near = replace(CHANGED, printed=text.replace("812", "1200"))
    assert likeness(plain, near, nudged, rounds=True).is_same
    far = replace(near, printed=near.printed.replace("1.2500", "1.3500"))
    assert not likeness(plain, far, nudged, rounds=True).is_same


def test_runs_that_have_drifted_apart_may_come_near_each_other_by_chance() -> None:
    """A GAN: in the second line the program is 0.9 from itself, in the third 0.01."""
    plain = replace(PLAIN, printed="D: 0.5000\nD: 0.0500\nD: 0.0700\n")
    nudged = replace(PLAIN, printed="D: 0.5000\nD: 0.9500\nD: 0.0600\n")
    changed = replace(CHANGED, printed="D: 0.5000\nD: 0.4000\nD: 0.2700\n")
    assert likeness(plain, changed, nudged, rounds=True).is_same
    early = replace(changed, printed=changed.printed.replace("0.5000", "0.7000"))
    assert not likeness(plain, early, nudged, rounds=True).is_same


def test_the_speedup_of_runs_that_took_turns_is_of_their_medians() -> None:
    plain = [replace(PLAIN, step_us=each) for each in (200.0, 220.0, 210.0)]
    changed = [replace(CHANGED, step_us=each) for each in (105.0, 100.0, 110.0)]
    found = with_times(likeness(PLAIN, CHANGED), plain, changed)
    assert found.is_same and found.speedup == Range(200 / 110, 2.0, 2.2)
    assert "2x (1.82x to 2.2x) measured, 3 runs of each in turns" in found.sentence
    slower = with_times(likeness(PLAIN, CHANGED), changed, plain)
    assert not slower.is_same and "The changed program is slower" in slower.sentence


def timed(run: Run, *times_us: float, late: bool = False) -> list[Run]:
    return [
        replace(run, step_us=9e3, late_step_us=t) if late else replace(run, step_us=t)
        for t in times_us
    ]


def test_runs_that_do_not_show_which_program_is_faster_do_not_call_it_slower() -> None:
    plain, changed = timed(PLAIN, 100.0, 130.0, 110.0), timed(CHANGED, 120.0, 95.0, 115.0)
    assert not is_decided(plain, changed)
    found = with_times(likeness(PLAIN, CHANGED), plain, changed)
    assert not found.is_same and found.is_timed
    assert found.sentence.startswith("The change was not shown to be faster: a step takes 110 µs")
    for faster, slower in ((changed, timed(PLAIN, 131.0, 140.0)), (timed(CHANGED, 150.0), plain)):
        assert is_decided(slower, faster)


def test_of_many_runs_the_fastest_and_the_slowest_are_left_out_of_the_bounds() -> None:
    plain = timed(PLAIN, 200.0, 202.0, 204.0, 206.0, 208.0, 900.0, 90.0)
    changed = timed(CHANGED, 100.0, 102.0, 104.0, 106.0, 108.0, 400.0, 50.0)
    assert is_decided(plain, changed) and not is_decided(plain[-3:], changed[-3:])
    found = with_times(likeness(PLAIN, CHANGED), plain, changed)
    assert found.speedup == Range(200 / 108, 204 / 104, 208 / 100)


def test_steps_after_the_captures_are_compared_where_each_run_has_them() -> None:
    plain, changed = timed(PLAIN, 200.0, 200.0, late=True), timed(CHANGED, 100.0, 100.0, late=True)
    found = with_times(likeness(PLAIN, CHANGED), plain, changed)
    assert found.speedup == Range(2.0, 2.0, 2.0)
    assert "in the second half of its steps, one takes 200 µs as it is" in found.sentence
    found = with_times(likeness(PLAIN, CHANGED), plain, [*changed, replace(CHANGED, step_us=9e3)])
    assert found.speedup == Range(1.0, 1.0, 1.0)


def test_a_program_that_shows_nothing_proves_nothing() -> None:
    silent = Run("", True, replays=3)
    assert not likeness(silent, silent).is_same


def test_lines_from_before_the_first_step_are_no_results() -> None:
    plain = replace(PLAIN, was_stopped=True, lines_before=2)
    late = replace(CHANGED, has_ended=False, steps=0)
    found = likeness(plain, late)
    assert not found.is_same and "has printed nothing since its first step" in found.sentence
    assert likeness(replace(plain, lines_before=1), late).is_same
    assert likeness(plain, replace(CHANGED, was_stopped=True)).is_same  # by its weights


def test_programs_that_are_stopped_are_compared_as_far_as_both_came() -> None:
    plain, changed = Run("a 1\nb 2\nc", False), Run("a 1\nb 2\nc 3\nd 4\n", True, replays=1)
    found = likeness(plain, changed)
    assert found.is_same and "(2 lines" in found.sentence
