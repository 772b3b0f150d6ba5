"""Lines that decide by Python state -> those that were seen to go both ways while the step stayed as it is.

Many steps decide only whether to log. What such a line does the other way is run: at the state at which its
condition becomes another one, and once more after it, since what it changes may be asked by the step that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial

from graphdoctor.record.host.python_state import Deciding
from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import Ran, is_the_same
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trends import Trend, advance
from graphdoctor.record.later.trials import Trials
from graphdoctor.values.errors import GraphDoctorError

_MOST = 16  # states at which lines go the other way
_IN_A_ROW = 2


class BranchTrials:
    """Tries where lines take the other branch."""

    def __init__(self, trials: Trials, trends: Sequence[Trend], lines: LineTrace) -> None:
        self._trials, self._trends, self._lines = trials, trends, lines
        self._tried: dict[int, bool] = {}

    def are_all_harmless(self, found: Sequence[Deciding]) -> bool:
        """Whether nothing comes of all those of which it is known when they go the other way."""
        steps = {one.steps for one in found if one.steps is not None}
        if len(steps) > _MOST or not all(map(self._is_foreseen, found)):
            return False
        return all(map(self._is_as_usual, sorted(steps)))

    def harmless(self, found: Sequence[Deciding]) -> Iterator[Deciding]:
        """Those of which nothing comes, after the state was tried that lies ahead."""
        for one in found:
            if one.steps is not None:
                yield one
            else:
                steps = self._lines.other_branch_at(one.line)
                if steps is not None and self._is_as_usual(steps):
                    yield one

    def _is_foreseen(self, one: Deciding) -> bool:
        if one.steps is None:
            return True
        return any((trend.path, trend.growth) == (one.path, one.growth) for trend in self._trends)

    def _is_as_usual(self, steps: int) -> bool:
        """Whether the step does the same so many steps later, and changes nothing else, and so does the next one."""
        if steps not in self._tried:
            self._tried[steps] = self._goes_on_as_usual(steps)
        return self._tried[steps]

    def _goes_on_as_usual(self, steps: int) -> bool:
        usual = self._usual  # each run in a row begins with the state put back
        with closing(self._trials.in_a_row(partial(advance, self._trends, steps))) as in_a_row:
            for _ in range(_IN_A_ROW):
                try:
                    with bounded(self._lines):
                        ran = next(in_a_row)
                except (LeavesStep, GraphDoctorError):
                    return False
                if not is_the_same(usual, ran):
                    return False
        return True

    @cached_property
    def _usual(self) -> Ran:
        """With what it changes, which is looked at of steps in a row alone."""
        with closing(self._trials.in_a_row()) as in_a_row:
            return next(in_a_row)
