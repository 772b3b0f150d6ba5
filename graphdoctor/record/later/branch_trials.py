"""Lines that decide by Python state -> those that were seen to go both ways while the step stayed as it is.

Many steps decide only whether to log. What such a line does the other way is run, at the state at which its
condition becomes another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from graphdoctor.record.host.python_state import Deciding
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.occasions import Condition, are_as_usual
from graphdoctor.record.later.trends import Trend, advance
from graphdoctor.record.later.trials import Trials
from graphdoctor.values.errors import GraphDoctorError

_MOST = 16  # states at which lines go the other way


class BranchTrials:
    """Tries where lines take the other branch."""

    def __init__(self, trials: Trials, trends: Sequence[Trend], lines: LineTrace) -> None:
        self._trials, self._trends, self._lines = trials, trends, lines
        self._tried: dict[int, bool] = {}

    def are_all_harmless(self, found: Sequence[Deciding]) -> bool:
        """Whether nothing comes of all those of which it is known when they go the other way."""
        steps = {one.steps for one in found if one.steps is not None and self._is_foreseen(one)}
        return len(steps) <= _MOST and all(map(self._is_as_usual, sorted(steps)))

    def harmless(self, found: Sequence[Deciding]) -> Iterator[Deciding]:
        """Those of which nothing comes, after the state was tried that lies ahead."""
        for one in found:
            if self._is_foreseen(one):
                yield one
            else:
                steps = self._lines.other_branch_at(one.line)
                if steps is not None and self._is_as_usual(steps):
                    yield one

    def _is_foreseen(self, one: Deciding) -> bool:
        return one.steps is not None and any(
            (trend.path, trend.growth) == (one.path, one.growth) for trend in self._trends
        )

    def _is_as_usual(self, steps: int) -> bool:
        """Whether the step does the same whenever it is so many steps on, and so do those after it."""
        if steps not in self._tried:
            self._tried[steps] = self._are_as_usual(partial(self._advanced, steps))
        return self._tried[steps]

    def _are_as_usual(self, condition: Condition) -> bool:
        try:
            return are_as_usual(self._trials, self._lines, condition, self._trends)
        except GraphDoctorError:
            return False

    @contextmanager
    def _advanced(self, steps: int) -> Iterator[None]:
        advance(self._trends, steps)
        yield
