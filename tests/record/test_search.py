"""Which later steps are tried, and which of them is told: the nearest that is another one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graphdoctor.record.later.later_events import (
    FAR,
    OtherStep,
    StepRun,
    constants,
    first_other_step,
    nearest_other_step,
    runs_of,
)
from graphdoctor.record.later.sandbox import LeavesStep, LineTrace
from graphdoctor.record.later.trends import Trend
from graphdoctor.target.state.paths import StatePath
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.locations import Location
from tests.support.builders import op

USUAL, OTHER = (
    StepRun([op("aten.mul.Tensor", line=1)], {}),
    StepRun([op("aten.add.Tensor", line=2)], {}),
)
ELSEWHERE = Location("model.py", 2, "")


class Counting:
    """A step by a count, in the place of runs on a device: it does something else where the count says so."""

    def __init__(
        self, is_other: Callable[[int], bool], *, start: int = 0, usual: StepRun = USUAL
    ) -> None:
        self._is_other, self._start, self.usual = is_other, start, usual
        self.count = start
        self.tried: list[int] = []

    in_time = staticmethod(iter)

    def moved(self, move: Callable[[], None]) -> StepRun:
        self.count = self._start
        move()
        self.tried.append(self.count)
        return OTHER if self._is_other(self.count) else self.usual

    def in_a_row(self) -> Iterator[StepRun]:
        for self.count in range(10**9):
            self.tried.append(self.count)
            yield OTHER if self._is_other(self.count) else self.usual

    def by(self, growth: int, *, end: int | None = None) -> Trend:
        return Trend(StatePath.of("count"), self._advance(growth), self._start, growth, end)

    def _advance(self, growth: int) -> Callable[[int], None]:
        def advance(steps: int) -> None:
            self.count += growth * steps

        return advance


def nearest(trials: Any, *trends: Trend, numbers: tuple[int, ...] = ()) -> OtherStep | None:
    return nearest_other_step(trials, trends, LineTrace(), numbers)[0]


def test_where_nothing_later_is_another_step_there_is_none() -> None:
    trials = Counting(lambda count: False)
    assert nearest(trials, trials.by(1), numbers=(5, 9)) is None
    assert trials.tried == [FAR[0] - 1, FAR[0], 4, 5, 8, 9]


@pytest.mark.parametrize(("start", "growth", "far"), [(0, 1, FAR[0] - 1), (20, 4, FAR[0] - 4)])
def test_a_count_that_goes_past_a_limit_is_far(start: int, growth: int, far: int) -> None:
    trials = Counting(lambda count: count > 1_000, start=start)
    assert nearest(trials, trials.by(growth)) == OtherStep((far - start) // growth, ELSEWHERE, True)


def test_the_nearest_number_that_it_may_be_compared_with_is_told() -> None:
    trials = Counting(lambda count: count >= 37)
    assert nearest(trials, trials.by(1), numbers=(50, 37, 40)) == OtherStep(37, ELSEWHERE, False)
    assert trials.tried[-1] == 0  # whether the usual step is still as it was
    assert 50 not in trials.tried


def test_the_step_before_a_number_is_tried_too() -> None:
    trials = Counting(lambda count: count == 36)
    assert nearest(trials, trials.by(1), numbers=(37,)) == OtherStep(36, ELSEWHERE, False)


def test_a_number_that_is_further_than_the_farthest_is_not_tried() -> None:
    trials = Counting(lambda count: False)
    nearest(trials, trials.by(1), numbers=(FAR[0] + 2, -3, 0, 1))
    assert trials.tried == [FAR[0] - 1, FAR[0], 1]


def test_what_is_used_up_is_tried_at_half_and_at_its_end() -> None:
    trials = Counting(lambda count: 3 < count < 8, start=11)
    found = nearest(trials, trials.by(-1, end=10))
    assert found == OtherStep(5, ELSEWHERE, True)
    assert trials.tried == [6, 11]


def test_not_more_than_four_far_steps_are_tried() -> None:
    trials = Counting(lambda count: False)
    nearest(trials, *(trials.by(growth) for growth in (1, 2, 3)))
    assert len(trials.tried) == 4


def test_what_never_is_the_far_number_is_tried_so_many_steps_later() -> None:
    trials = Counting(lambda count: count == 7 * FAR[0])
    assert nearest(trials, trials.by(7)._replace(now=None, growth=None)) == OtherStep(
        FAR[0], ELSEWHERE, True
    )


@pytest.mark.parametrize("far", FAR[1:])
def test_a_step_that_cannot_be_so_far_on_is_asked_for_less(far: int) -> None:
    def is_other(count: int) -> bool:
        if count > far:
            raise UserCodeError("there are no more places")
        return count == far

    trials = Counting(is_other)
    assert nearest(trials, trials.by(1)) == OtherStep(far, ELSEWHERE, True)


def test_a_step_that_leaves_the_process_is_another_one() -> None:
    def is_other(count: int) -> bool:
        if count > 10:
            raise LeavesStep(ELSEWHERE)
        return False

    trials = Counting(is_other)
    assert nearest(trials, trials.by(1)) == OtherStep(FAR[0] - 1, ELSEWHERE, True, branch=ELSEWHERE)


def test_a_step_that_is_another_one_each_time_tells_nothing() -> None:
    times = iter(range(100))
    trials = Counting(lambda count: next(times) > 0)
    assert nearest(trials, trials.by(1)) is None


def test_few_later_steps_of_many_operators_are_tried() -> None:
    many = StepRun([op("aten.mul.Tensor", line=1)] * 3_000, {})
    trials = Counting(lambda count: False, usual=many)
    nearest(trials, trials.by(1), numbers=tuple(range(100, 150)))
    assert trials.tried == [FAR[0] - 1, FAR[0], 99, 100]


@pytest.mark.parametrize(("operators", "runs"), [(0, 3_000), (1, 3_000), (2, 1_500), (3_001, 0)])
def test_more_of_a_step_are_run_the_fewer_operators_it_has(operators: int, runs: int) -> None:
    assert runs_of(StepRun([op("aten.mul.Tensor")] * operators, {})) == runs


def in_a_row(trials: Any, *, is_foreseen: bool = False, lines: int = 0) -> OtherStep | None:
    counted = LineTrace()
    counted.count = lines
    return first_other_step(trials, counted, is_foreseen=is_foreseen)


@pytest.mark.parametrize("at", [0, 1, 63])
def test_the_first_of_the_next_steps_that_is_another_one_is_told(at: int) -> None:
    trials = Counting(lambda count: count == at, start=1_000)
    assert in_a_row(trials) == OtherStep(at, ELSEWHERE, False)


@pytest.mark.parametrize(
    ("operators", "is_foreseen", "lines", "steps"),
    [
        (1, False, 0, 64),
        (100, False, 0, 30),
        (100, True, 0, 6),
        (1, False, 5_000, 2),
        (1, True, 5_000, 2),
    ],
)
def test_so_many_of_the_next_steps_are_run(
    operators: int, is_foreseen: bool, lines: int, steps: int
) -> None:
    trials = Counting(
        lambda count: False, usual=StepRun([op("aten.mul.Tensor", line=1)] * operators, {})
    )
    assert in_a_row(trials, is_foreseen=is_foreseen, lines=lines) is None
    assert trials.tried == list(range(steps))


def test_one_of_the_next_steps_that_fails_is_another_one() -> None:
    def is_other(count: int) -> bool:
        if count == 3:
            raise UserCodeError("it raised")
        return False

    found = in_a_row(Counting(is_other))
    assert found is not None
    assert (found.steps, found.place, found.is_far) == (3, None, False)


def test_whole_numbers_in_code_are_those_of_code_that_names_the_state_first() -> None:
    def other() -> object:
        return [value + 70 for value in (8.0, 0.5, "9")] or (lambda: 6)

    def naming(state: Any) -> object:
        return state.count in (3, 4)

    for codes in ([other.__code__, naming.__code__], [naming.__code__, other.__code__]):
        found = constants(codes, {"count"})
        assert found[:2] == [3, 4]
        assert {6, 8, 70} <= set(found)
        assert not {0.5, "9", 9} & set(found)


def test_a_finalizer_that_the_collector_runs_is_no_line_of_the_step() -> None:
    class Cycle:
        def __del__(self) -> None:
            pass

    cycle = "each = Cycle(); each.me = each; each = None"
    code = compile(f"{cycle}; lists = list(map(list, [()] * 10_000))", "step.py", "exec")
    trace = LineTrace()
    with trace.counted():
        exec(code, {"Cycle": Cycle})
    assert code in trace.codes
    assert Cycle.__del__.__code__ not in trace.codes
    assert gc.isenabled()
