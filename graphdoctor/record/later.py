"""A step whose Python state has moved on by many steps -> whether it does something else then.

What decides by a counter can be spelled in any way: through a variable, a table, a property, another function.
So the state is set to what it will be, as far as each step changes it in the same way, and the step is run.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import CodeType
from typing import NamedTuple

from graphdoctor.record.moves import Move
from graphdoctor.record.outward import Inside, LeavesStep
from graphdoctor.record.patience import ended_after, raised_at, silent
from graphdoctor.record.python_state import own_name
from graphdoctor.record.sameness import Ran, first_difference, is_the_same
from graphdoctor.record.session import calls_inside
from graphdoctor.record.ways import Lines
from graphdoctor.values.errors import GraphDoctorError, UserCodeError
from graphdoctor.values.locations import Location

# Many whole numbers divide the first: 2 to 1024, 10 to 10,000, 3, 6, 12, 24, 60, 300. A step that cannot
# be so far on, since it counts places of something for example, is asked for less.
FAR = (1_920_000, 9_600, 240, 12)
_MOST_RUNS = 16
_MOST_OPERATORS = 6_000  # in all of them
_MOST_IN_A_ROW = 64
_LINES_IN_A_ROW = 10_000
_FEWER_IF_FORESEEN = 5
_MORE_LINES = 2_000
_TIMES_LINES = 4
_LEAST_S = 10.0
_TIMES_SECONDS = 20


class Later(NamedTuple):
    """The first thing that is another one, so many steps later; or at some time before, where `is_far`."""

    steps: int
    place: Location | None
    is_far: bool


Run = Callable[[Callable[[], None]], Ran]  # the step from its start, after a change of the state


def first_other_way(
    run: Run, usual: Ran, moves: Sequence[Move], lines: Lines, numbers: Sequence[int]
) -> Later | None:
    """The nearest of some later steps that issues other operators, shapes or numbers; None: all are as usual.

    `lines` are those of a usual step, `numbers` what its state may be compared with.
    """
    search = _Search(run, usual, moves, lines)
    for far in FAR:
        for steps in _far(moves, far):
            search.look(steps, is_far=True)
        if search.has_run:
            break
    runs = min(_MOST_RUNS, _MOST_OPERATORS // max(1, len(usual.ops)))
    names = {own_name(move.path) for move in moves}
    for steps in sorted(_near(moves, [*constants(lines.codes, names), *numbers])[:runs]):
        search.look(steps, is_far=False)
    return search.found if search.found is not None and is_as_usual(run, usual, lines) else None


def runs_of(usual: Ran) -> int:
    """How many more of a step are not too many."""
    return _MOST_OPERATORS // (2 * max(1, len(usual.ops)))


def first_other_step(
    in_a_row: Iterator[Ran], usual: Ran, lines: Lines, *, is_foreseen: bool
) -> Later | None:
    """The first of the next steps, which go on from each other, that is another one.

    Where all that changes was set to where it will be, few steps are run.
    """
    most = runs_of(usual) // (_FEWER_IF_FORESEEN if is_foreseen else 1)
    of_lines = _LINES_IN_A_ROW // max(1, lines.count)
    first: Ran | None = None
    for steps in range(min(_MOST_IN_A_ROW, most, of_lines)):
        try:
            with bounded(lines) as seen:
                ran = next(in_a_row)
                other = first_difference(usual, ran)
        except LeavesStep as left:
            return Later(steps, left.place, False)
        except GraphDoctorError:  # it fails then
            return Later(steps, None, False)
        if other is not None:
            return Later(steps, other.location, False)
        first = first or ran
        if is_the_same(first, ran):
            lines.did_the_same(seen, 0)
    return None


def is_as_usual(run: Run, usual: Ran, lines: Lines) -> bool:
    """Whether the step does the same from the same state: else it is another one each time, or writes each time."""
    try:
        with bounded(lines):
            return first_difference(usual, run(lambda: None)) is None
    except LeavesStep:
        return False


class _Search:
    """Runs the step with its state some steps later, and keeps the nearest where it is another one."""

    def __init__(self, run: Run, usual: Ran, moves: Sequence[Move], lines: Lines) -> None:
        self._run, self._usual, self._moves, self._lines = run, usual, moves, lines
        self.found: Later | None = None
        self.has_run = False  # in some later state; else the step failed in all of them

    def look(self, steps: int, *, is_far: bool) -> None:
        if self.found is not None and steps >= self.found.steps:
            return
        try:
            with bounded(self._lines) as seen:
                ran = self._run(lambda: self._move(steps))
        except LeavesStep as left:
            self.found, self.has_run = Later(steps, left.place, is_far), True
            return
        except GraphDoctorError:  # the state cannot be that
            return
        self.has_run = True
        other = first_difference(self._usual, ran)
        if other is not None:
            self.found = Later(steps, other.location, is_far)
        else:
            self._lines.did_the_same(seen, steps)

    def _move(self, steps: int) -> None:
        for each in self._moves:
            each.by(steps)


@contextmanager
def bounded(lines: Lines) -> Iterator[Lines]:
    """A run that neither lasts for very long, nor prints, nor writes what only a later step would, nor ends all."""
    seen = Lines(_TIMES_LINES * lines.count + _MORE_LINES, lines.deciding)
    disabled = logging.root.manager.disable
    with (
        ended_after(max(_LEAST_S, _TIMES_SECONDS * lines.seconds)),
        silent(),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        calls_inside(_INSIDE.only, seen.counted),
    ):
        logging.disable()
        try:
            yield seen
        except UserCodeError as error:
            if isinstance(error.__cause__, LeavesStep):
                raise error.__cause__ from None
            if isinstance(error.__cause__, SystemExit):
                raise LeavesStep(raised_at(error.__cause__)) from None
            raise
        finally:
            logging.disable(disabled)


_INSIDE = Inside()


def constants(codes: Iterable[CodeType], names: Set[str] = frozenset()) -> list[int]:
    """The whole numbers in code that ran, and in functions that it makes; first those of code that names the state."""
    found: dict[int, None] = {}
    waiting = sorted(codes, key=lambda code: not _names_one(code, names), reverse=True)
    while waiting:
        for const in waiting.pop().co_consts:
            if isinstance(const, CodeType):
                waiting.append(const)
            for each in const if isinstance(const, (tuple, frozenset)) else (const,):
                if type(each) in (int, float) and math.isfinite(each) and each == int(each):
                    found.setdefault(int(each))
    return list(found)


def _names_one(code: CodeType, names: Set[str]) -> bool:
    return not names.isdisjoint(
        (*code.co_names, *code.co_freevars, *filter(_is_text, code.co_consts))
    )


def _is_text(const: object) -> bool:
    return isinstance(const, str)


def _far(moves: Sequence[Move], far: int) -> list[int]:
    """Steps after which what is counted is a number that many others divide, or one less, or at its end."""
    found: dict[int, None] = {}
    for move in moves:
        if move.end is not None:
            found.update(dict.fromkeys((move.end // 2, move.end)))
        for steps in move.until(far):
            found.update(dict.fromkeys((steps - 1, steps)))
    return [steps for steps in found if steps > 0][:4] or [far]


def _near(moves: Sequence[Move], numbers: Sequence[int]) -> list[int]:
    """Steps before and after which what is counted is one of these numbers, in their order."""
    found: dict[int, None] = {}
    for each in numbers:
        for steps in (steps for move in moves for steps in move.until(each)):
            found.update(dict.fromkeys(one for one in (steps - 1, steps) if 0 < one <= FAR[0]))
    return list(found)
