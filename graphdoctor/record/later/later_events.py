"""Steps that differ later: branches in Python on state that each step changes."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence

from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.record.host.host_events import SeenOfHost
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import are_alike, ran
from graphdoctor.record.later.search import OtherStep, first_other_step, nearest_other_step
from graphdoctor.record.later.trends import moment, numbers_in, trends
from graphdoctor.record.later.trials import Trials
from graphdoctor.record.session import Session
from graphdoctor.target.state.plain import inner_path
from graphdoctor.values.errors import RaisesLater
from graphdoctor.values.figures import count_text, names_text, shortened
from graphdoctor.values.host_events import PythonEvent
from graphdoctor.values.recording import Iteration

_MOST_NAMES = 3


def with_later_steps(
    seen: SeenOfHost, session: Session, captured: Sequence[Iteration]
) -> Iterator[PythonEvent]:
    """The events, and one for the branch by which a later step differs from the recorded ones.

    Steps that differ among themselves are findings of other rules. With several ranks nothing is tried: the
    others would wait.
    """
    yield from seen.events
    if session.raises is not None:  # before later steps could be compared
        yield _raises(session.raises)
        return
    shapes = captured[0].input_shapes
    alike = [ran(one.ops, one.externals) for one in captured if one.input_shapes == shapes]
    if MEETING.has_others or not session.device.has_values or not are_alike(alike):
        return
    if seen.changing and (other := _other_step(Trials(session), seen)) is not None:
        yield _state_branch(other, seen)


def _raises(error: RaisesLater) -> PythonEvent:
    what = str(error).removeprefix("running the step failed: ")
    return PythonEvent(what, kind="raises-later", detail=str(error.calls))


def _other_step(trials: Trials, seen: SeenOfHost) -> OtherStep | None:
    """The step is run with all that it changes set to later values, and then a few times in a row."""
    session, names = trials.session, seen.changing
    roots = session.target.roots
    lines = LineTrace()
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, names), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, names)
        with lines.counted():
            session.call(session.inputs(0))
        found = trends(first, second, moment(roots, names))
    other = nearest_other_step(trials, found, lines, numbers) if found else None
    if other is not None:
        return other
    is_foreseen = not set(names).difference(trend.path for trend in found)
    return first_other_step(trials, lines, is_foreseen=is_foreseen)


def _state_branch(other: OtherStep, seen: SeenOfHost) -> PythonEvent:
    place = other.branch or other.place
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    when = "in a later step" if other.is_far else f"after {count_text(other.steps, 'more step')}"
    code = f"`{shortened(line)}` differs" if line else "The step differs"
    names = names_text(tuple(dict.fromkeys(map(inner_path, seen.changing))), most=_MOST_NAMES)
    return PythonEvent(
        names,
        kind="state-branch",
        op_index=other.op_index,
        location=place,
        detail=f"{code} {when}",
    )
