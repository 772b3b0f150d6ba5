"""A condition that seldom holds, as a counter's place or another answer -> whether steps are as usual whenever it does.

What a step changes only then (a meter that is cleared, a bar's text, a flag) goes on from one such occasion to the
next. So occasions are run in a row, a usual step after each, and then at places of what they change that lie ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property
from itertools import islice

from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import Ran, first_difference
from graphdoctor.record.later.search import nearest_other_step
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trends import Moment, Trend, moment, numbers_in, trends
from graphdoctor.record.later.trials import Trials

_LOOKS = 3
# The first may begin something, such as a list that was empty or the best so far; the others show how it goes on.
_IN_A_ROW = 4
_TOLD_AS = ("{}", "len({})", "contents({})", "position({})")
Condition = Callable[[], AbstractContextManager[object]]


class Occasions(Trials):
    """Runs of a step while a condition holds."""

    def __init__(self, trials: Trials, condition: Condition) -> None:
        super().__init__(trials.session)
        self._others, self._condition = trials, condition

    @cached_property
    def usual(self) -> Ran:
        """Nothing else is to be seen on these occasions."""
        return self._others.usual

    @cached_property
    def first_in_a_row(self) -> Ran:
        return self._others.first_in_a_row

    def moved(self, move: Callable[[], None]) -> Ran:
        """An occasion, or the step after it where that is another one."""
        with closing(self.each_with_the_next(move)) as in_a_row:
            ran = next(in_a_row)
            return next(in_a_row) if first_difference(self.usual, ran) is None else ran

    def each_with_the_next(
        self, look: Callable[[], None], move: Callable[[], None] = lambda: None
    ) -> Generator[Ran]:
        """An occasion and, after a move, the next step, without an end; before each occasion somebody looks."""
        with ExitStack() as stack:

            def begin() -> None:
                look()
                stack.enter_context(self._condition())

            # The state is put back first: what stands in for something may be a name of the user's.
            with closing(self.in_a_row(begin)) as in_a_row:
                while True:
                    yield next(in_a_row)
                    stack.close()
                    move()
                    yield next(in_a_row)
                    begin()


class _After(Trials):
    """Runs of a step after an occasion, whose state goes on."""

    def __init__(self, occasions: Occasions) -> None:
        super().__init__(occasions.session)
        self._occasions = occasions

    @cached_property
    def usual(self) -> Ran:
        return self._occasions.usual

    def moved(self, move: Callable[[], None]) -> Ran:
        with closing(self._occasions.each_with_the_next(lambda: None, move)) as in_a_row:
            next(in_a_row)
            return next(in_a_row)


class _Second(_After):
    """Runs of an occasion after another one, whose state goes on."""

    def moved(self, move: Callable[[], None]) -> Ran:
        moves = iter((lambda: None, move))
        with closing(self._occasions.each_with_the_next(lambda: next(moves)())) as in_a_row:
            *_, ran, after = islice(in_a_row, 4)
            return after if first_difference(self.usual, ran) is None else ran


def are_as_usual(
    trials: Trials, lines: LineTrace, condition: Condition, goes_on: Sequence[Trend] = ()
) -> bool:
    """Whether nothing that a graph keeps is another one on these occasions, or after them.

    `goes_on` is what each step changes. Raises what the step raises on an occasion.
    """
    occasions = Occasions(trials, condition)
    try:
        changed, *_ = _run(occasions, lines, 1)
        if not changed:
            return True
        for _ in range(_LOOKS):
            also, seen, numbers, trace = _run(occasions, lines, _IN_A_ROW, changed)
            if also <= changed:
                break
            changed |= also  # as a bar is drawn when some time has passed
        else:
            return False
    except (LeavesStep, _AnotherError):
        return False
    at_first, ahead = trends(*seen[:3]), trends(*seen[1:])
    after = _After(occasions)
    begins = {(one.path, one.growth) for one in at_first} != {
        (one.path, one.growth) for one in ahead
    }
    return all(
        not found or nearest_other_step(each, found, trace, numbers) is None
        for each, found in (
            (_Second(occasions) if begins else occasions, ahead),
            (after if begins else trials, ahead),
            (after, goes_on),
        )
    )


class _AnotherError(Exception):
    """It is another step."""


def _run(
    occasions: Occasions, lines: LineTrace, times: int, watched: Set[str] = frozenset()
) -> tuple[set[str], list[Moment], list[int], LineTrace]:
    """What they change that usual steps leave alone, what was watched before each, new numbers, the last's lines."""
    usual, roots = occasions.first_in_a_row, occasions.session.target.roots
    paths = {form.format(path) for path in watched for form in _TOLD_AS}
    changed: set[str] = set()
    seen: list[Moment] = []
    trace = lines
    found: list[list[int]] = []

    def look() -> None:
        seen.append(moment(roots, paths) if paths else {})
        found.append(numbers_in(roots) if paths else [])

    in_a_row = occasions.each_with_the_next(look)
    with closing(in_a_row):
        for at in range(2 * times):
            with bounded(lines) as ended:
                ran = next(in_a_row)
            trace = trace if at % 2 else ended
            if first_difference(usual, ran) is not None:
                raise _AnotherError
            changed.update(ran.changed - usual.changed)
    return changed, seen, sorted(found[-1], key=found[0].__contains__), trace
