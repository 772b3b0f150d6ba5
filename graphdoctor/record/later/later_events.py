"""What the host does in a step -> where a later step is another one by it: in a later state, or at a later time."""

from __future__ import annotations

import linecache
import time
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice

from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.record.host.clocks import (
    AT_OTHER_TIMES_S,
    FAR_AHEAD_S,
    clocks_ahead,
    tells_of_day,
)
from graphdoctor.record.host.host_events import SeenOfHost
from graphdoctor.record.host.lines import Line
from graphdoctor.record.host.python_state import Deciding
from graphdoctor.record.later.answers import is_open, tried, untried
from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.branch_trials import BranchTrials
from graphdoctor.record.later.held_by_others import others_of
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import Ran, are_alike, first_difference, ran
from graphdoctor.record.later.search import (
    first_other_of,
    first_other_step,
    nearest_other_step,
    runs_of,
)
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trends import moment, numbers_in, trends
from graphdoctor.record.later.trials import Trials
from graphdoctor.record.session import Session
from graphdoctor.values.errors import GraphDoctorError, RaisesLater
from graphdoctor.values.figures import count_text, shortened
from graphdoctor.values.host_events import PythonEvent
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration

_STEPS_WITH_FAST_CLOCKS = 8


def with_later_steps(
    seen: SeenOfHost, session: Session, captured: Sequence[Iteration]
) -> Iterator[PythonEvent]:
    """The events; of lines that decide, those by which a later step is another one.

    Not what the recorded steps show. Of several ranks none goes another way for a trial: the others would
    wait for it.
    """
    by_lines = [event for event in seen.events if event.kind == "python-decision"]
    told = [event for event in seen.events if event.kind != "python-decision"]
    trials = Trials(session)
    if session.raises is not None:  # before later steps could be compared
        yield from (*map(untried, told), *by_lines, _raises(session.raises))
        return
    yield from _with_other_answers(trials, told)
    shapes = captured[0].input_shapes
    alike = [ran(one.ops, one.externals) for one in captured if one.input_shapes == shapes]
    if MEETING.has_others or not session.device.has_values or not are_alike(alike):
        yield from by_lines
        return
    clocks = [event for event in seen.events if event.kind == "host-time"]
    if clocks:
        yield from _at_a_later_time(trials, clocks)
    if seen.changing:
        yield from _in_a_later_state(trials, seen, by_lines)


def _raises(error: RaisesLater) -> PythonEvent:
    what = str(error).removeprefix("running the step failed: ")
    return PythonEvent(what, kind="raises-later", detail=str(error.calls))


def _with_other_answers(trials: Trials, events: Sequence[PythonEvent]) -> Iterator[PythonEvent]:
    """Of what the step asks for: whether it decides by the answer. Ranks would wait for one that goes another way."""
    session = trials.session
    can_try = session.device.has_values and not MEETING.has_others
    if not can_try or not (any(map(is_open, events)) or any(others_of(session.target.roots))):
        yield from map(untried, events)
        return
    with session.from_the_start(capturing=True):
        lines = _lines_of_a_step(session)
    yield from tried(events, trials, lines)


def _in_a_later_state(
    trials: Trials, seen: SeenOfHost, by_lines: Sequence[PythonEvent]
) -> Iterator[PythonEvent]:
    """What lines decide, as far as nobody saw that nothing comes of it; else what is seen of the whole step.

    All that steps change goes on together; what of it decides is not told apart. What nobody could foresee
    shows where the next steps are run one after the other.
    """
    session, names, deciding = trials.session, seen.changing, seen.deciding
    roots = session.target.roots
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, names), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, names)
        lines = _lines_of_a_step(session, {one.line for one in deciding})
        found = trends(first, second, moment(roots, names))
    branches = BranchTrials(trials, found, lines)
    if not branches.are_all_harmless(deciding):
        yield from by_lines
        return
    foreseen = tuple(trend.path for trend in found)
    other = nearest_other_step(trials, found, lines, numbers) if found else None
    if other is not None:
        names = foreseen
    else:
        is_foreseen = not set(names).difference(foreseen)
        other = first_other_step(trials, lines, is_foreseen=is_foreseen)
    if other is not None:
        when = "in a later step" if other.is_far else f"{count_text(other.steps, 'step')} later"
        detail = f"`{_code(other.place)}` does something else {when}"
        for name in names:
            yield PythonEvent(name, kind="python-decision", location=other.place, detail=detail)
    else:
        left = set(deciding).difference(branches.harmless(deciding))
        yield from (
            event for event in by_lines if _is_of(event, left) or not _is_of(event, deciding)
        )


def _is_of(event: PythonEvent, deciding: Iterable[Deciding]) -> bool:
    place = event.location
    return place is not None and any(
        (one.path, one.line.code.co_filename, one.line.number)
        == (event.name, place.file, place.line)
        for one in deciding
    )


def _at_a_later_time(trials: Trials, clocks: Sequence[PythonEvent]) -> Iterator[PythonEvent]:
    """With every clock set forward, and with fast ones: one that only times the work decides nothing."""
    with trials.session.from_the_start(capturing=True):
        lines = _lines_of_a_step(trials.session)
    names = dict.fromkeys(event.name for event in clocks)
    times = AT_OTHER_TIMES_S if any(map(tells_of_day, names)) else ()
    ahead_s = (FAR_AHEAD_S, *times[: runs_of(trials.usual)])
    begun_s = time.monotonic()
    now = _run_now(trials, lines, begun_s)
    if now is None:
        return
    # What ran before may have been another step already; all others are compared with one of their own time.
    first = (_run_at(trials, 0, begun_s), trials.usual)
    others = (_with_fast_clocks(trials), *(_run_at(trials, each, begun_s) for each in ahead_s))
    for runs, usual in (first, *((each, now) for each in others)):
        with closing(runs):
            other = first_other_of(runs, usual, lines)
        if other is None or other.fails:
            continue
        # At that time again, which has gone by: a second later the step may be another one by itself.
        again = _run_now(trials, lines, begun_s)
        if again is not None and first_difference(now, again) is None:
            detail = f"`{_code(other.place)}` does something else at a later time"
            for name in names:
                yield PythonEvent(name, kind="clock-decision", location=other.place, detail=detail)
        return


def _run_at(trials: Trials, ahead_s: int, begun_s: float) -> Generator[Ran]:
    """The step, so many seconds after that time.

    Clocks are set after the state was put back: they may be names of the user's.
    """
    with ExitStack() as stack:
        since_s = time.monotonic() - begun_s
        ahead = clocks_ahead(trials.session.target.roots, ahead_s - since_s)
        yield trials.moved(partial(stack.enter_context, ahead))


def _run_now(trials: Trials, lines: LineTrace, begun_s: float) -> Ran | None:
    """The step at that time; None where it leaves the step, or fails, by itself."""
    try:
        with bounded(lines), closing(_run_at(trials, 0, begun_s)) as runs:
            return next(runs)
    except (LeavesStep, GraphDoctorError):
        return None


def _with_fast_clocks(trials: Trials) -> Generator[Ran]:
    """Steps in which all that is timed takes very long, one after the other: each may count the slow ones."""
    with ExitStack() as stack:
        ahead = clocks_ahead(trials.session.target.roots, FAR_AHEAD_S, each_time=True)
        in_a_row = trials.in_a_row(partial(stack.enter_context, ahead))
        stack.callback(in_a_row.close)
        yield from islice(in_a_row, min(_STEPS_WITH_FAST_CLOCKS, max(1, runs_of(trials.usual))))


def _lines_of_a_step(session: Session, deciding: Set[Line] = frozenset()) -> LineTrace:
    lines = LineTrace(deciding=deciding)
    with lines.counted():
        session.call(session.inputs(0))
    return lines


def _code(place: Location | None) -> str:
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    return shortened(line) or "the step"
