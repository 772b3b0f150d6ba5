"""The branches that a run takes from lines that decide."""

from __future__ import annotations

from collections.abc import Callable

from graphdoctor.record.host.lines import Line
from graphdoctor.record.later.line_trace import LineTrace


def made() -> tuple[Callable[[int], int], Line]:
    """A function that no run was traced of, and the line of it that decides."""

    def deciding(number: int) -> int:
        return 1 if number > 3 else 2

    code = deciding.__code__.replace()  # instructions that were never traced
    deciding.__code__ = code
    return deciding, Line(code, code.co_firstlineno + 1)


def run_of(function: Callable[[int], int], line: Line, number: int) -> LineTrace:
    trace = LineTrace(deciding={line})
    with trace.counted():
        function(number)
    return trace


def test_the_first_run_of_a_function_takes_the_branches_of_the_next() -> None:
    """From Python 3.13 on its first call may be without instructions, so that the next seemed to go another way."""
    function, line = made()
    first, second = (run_of(function, line, 1) for _ in range(2))
    assert first.branches and first.branches == second.branches
    first.did_the_same(second, 1)
    assert first.other_branch_at(line) is None


def test_another_branch_is_known_by_the_steps_to_it() -> None:
    function, line = made()
    first = run_of(function, line, 1)
    first.did_the_same(run_of(function, line, 9), 8)
    assert first.other_branch_at(line) == 8


def test_a_run_that_never_came_to_the_line_knows_no_other_branch() -> None:
    function, line = made()
    first = LineTrace(deciding={line})
    first.did_the_same(run_of(function, line, 9), 8)
    assert first.other_branch_at(line) is None
