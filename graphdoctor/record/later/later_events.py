"""Steps that differ later: branches in Python on state that each step changes."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from graphdoctor.record.host.clocks import clocks_an_hour_ahead
from graphdoctor.record.host.host_events import SeenOfHost
from graphdoctor.record.host.python_state import HostState
from graphdoctor.record.later.bounded import bounded
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import are_alike, first_difference, ran
from graphdoctor.record.later.search import (
    OtherStep,
    first_other_step,
    is_as_usual,
    nearest_other_step,
)
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.record.later.trends import Trend, advance, moment, numbers_in, trends
from graphdoctor.record.later.trials import Trials
from graphdoctor.record.session import Session
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import count_text, names_text, shortened
from graphdoctor.values.host_events import (
    ClockRead,
    DiffersByClock,
    DiffersByState,
    LaterStepDiffers,
    LaterStepRaises,
    PythonEvent,
)
from graphdoctor.values.recording import Iteration

_MOST_NAMES = 3
_SOME_TIME = "in a later step"


def with_later_steps(
    seen: SeenOfHost, session: Session, captured: Sequence[Iteration]
) -> Iterator[PythonEvent]:
    """The events, and one for the branch by which a later step differs from the recorded ones.

    Steps that differ among themselves are findings of other rules. With several ranks nothing is tried: the
    others would wait.
    """
    yield from seen.events
    if session.raises is not None:  # before later steps could be compared
        what = str(session.raises).removeprefix("running the step failed: ")
        yield LaterStepRaises(what, calls=session.raises.calls)
        return
    shapes = captured[0].input_shapes
    alike = [ran(one.ops, one.externals) for one in captured if one.input_shapes == shapes]
    if session.device.meeting.has_others or not session.device.has_values or not are_alike(alike):
        return
    clocks = sorted({event.name for event in seen.events if isinstance(event, ClockRead)})
    if not clocks and not seen.changing:
        return
    trials, lines = Trials(session), LineTrace()
    with session.from_the_start(capturing=True), lines.counted():
        session.call(session.inputs(0))
    if clocks and (other := _an_hour_later(trials, lines)) is not None:
        yield _branch(DiffersByClock, other, clocks, "an hour later")
    if seen.changing:
        yield from _at_later_steps(trials, seen.changing, lines)


def _at_later_steps(
    trials: Trials, names: Mapping[str, str], lines: LineTrace
) -> Iterator[PythonEvent]:
    """The step is run with all that it changes set to later values, and then a few times in a row.

    A later step may change state that usual steps leave alone, as a counter of epochs. Such state is set
    to later values as well.
    """
    session, roots = trials.session, trials.session.target.roots
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, names), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, names)
        session.call(session.inputs(0))
        found = trends(first, second, moment(roots, names))
    other, same = nearest_other_step(trials, found, lines, numbers)
    if other is None:
        for steps in same:
            seldom = _seldom_changed(trials, found, steps, names, lines)
            if not seldom:
                continue
            other, _ = nearest_other_step(trials, seldom, lines, numbers)
            if other is not None:
                paths = [str(one.path.inner) for one in seldom]
                yield _branch(DiffersByState, other, paths, _SOME_TIME)
                return
        is_foreseen = not set(names).difference(str(trend.path) for trend in found)
        other = first_other_step(trials, lines, is_foreseen=is_foreseen)
    if other is not None:
        after = f"after {count_text(other.steps, 'more step')}"
        yield _branch(DiffersByState, other, names.values(), _SOME_TIME if other.is_far else after)


def _seldom_changed(
    trials: Trials, found: Sequence[Trend], steps: int, names: Iterable[str], lines: LineTrace
) -> list[Trend]:
    """How state continues that the step changes only so many steps later, such as every hundredth time."""
    session, roots = trials.session, trials.session.target.roots

    def run() -> None:
        advance(found, steps)
        with bounded(lines):
            session.call(session.inputs(0))

    try:
        with session.from_the_start(capturing=True):
            before = HostState(roots, session.device.table)
            run()
            changes = before.changes(HostState(roots, session.device.table))
        paths = {one.path for one in changes if one.kind != "rebound-tensor"}.difference(names)
        if not paths:
            return []
        with session.from_the_start(capturing=True):
            moments = [moment(roots, paths)]
            for _ in range(2):
                run()
                moments.append(moment(roots, paths))
            return trends(*moments)
    except (LeavesStep, GraphDoctorError):
        return []


def _an_hour_later(trials: Trials, lines: LineTrace) -> OtherStep | None:
    """The step with Python's clocks set an hour ahead."""
    try:
        with ExitStack() as stack, bounded(lines) as seen:
            ran_later = trials.moved(partial(stack.enter_context, clocks_an_hour_ahead()))
    except LeavesStep as left:
        return OtherStep(0, left.place, True, branch=left.place)
    except GraphDoctorError:
        return None
    other = first_difference(trials.usual, ran_later)
    if other is None or not is_as_usual(trials, lines):
        return None
    return OtherStep(0, other.location, True, other.index, lines.branch_to(seen))


def _branch(
    kind: type[LaterStepDiffers], other: OtherStep, names: Iterable[str], when: str
) -> LaterStepDiffers:
    place = other.branch or other.place
    line = linecache.getline(place.file, place.line).partition("#")[0].strip() if place else ""
    code = f"`{shortened(line)}` differs" if line else "The step differs"
    return kind(
        names_text(tuple(dict.fromkeys(names)), most=_MOST_NAMES),
        op_index=other.op_index,
        location=place,
        difference=f"{code} {when}",
    )
