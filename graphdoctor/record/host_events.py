"""A session -> what its host draws, reads and changes in a step, and whether a later step goes another way by it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence

from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.record.clocks import clocks_ahead
from graphdoctor.record.host import HostObserver, NumpyState, numpy_generators, state_of
from graphdoctor.record.later import (
    Lines,
    Ran,
    Run,
    are_alike,
    bounded,
    first_difference,
    first_other_way,
    is_as_usual,
    ran,
)
from graphdoctor.record.lines import Watch
from graphdoctor.record.moves import moment, moves, numbers_in
from graphdoctor.record.outward import LeavesStep
from graphdoctor.record.python_state import StateWatch, lasting_changes, state_watches
from graphdoctor.record.running import Running
from graphdoctor.record.session import Session
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import count_text, shortened
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import HostEvent, Iteration


def host_events(session: Session, captured: Sequence[Iteration], run: Run) -> tuple[HostEvent, ...]:
    """What the host drew, read and changed in one iteration, which runs after all that are recorded.

    By then Python has imported what it imports lazily; imports draw random numbers of their own.
    Lines are watched for NumPy's draws only where a first look found that there are some, and for the
    Python state that was seen to change. `run` runs the step in a state that is not that of its start.
    """
    roots = session.target.roots
    generators = numpy_generators(roots)
    with session.from_the_start(capturing=True):
        before = [state_of(generator) for generator in generators]
        events = _watched(session, [])
        drawn = [
            generator
            for generator, was in zip(generators, before, strict=True)
            if state_of(generator) != was
        ]
    changed = lasting_changes(captured)
    watches: list[StateWatch] = []
    if drawn or changed:
        with session.from_the_start(capturing=True):
            watches = state_watches(roots, changed)
            by_line = [watch for watch in watches if watch.is_by_line]
            events = _watched(session, [*map(NumpyState, drawn), *by_line])
    events = tuple(_of_the_step(events, watches))
    return (*events, *_later_ways(session, captured, run, events, watches))


def _watched(session: Session, watches: Sequence[Watch]) -> tuple[HostEvent, ...]:
    inputs = session.inputs(0)
    observer = HostObserver(watches, Running(session.target.roots))
    with session.device.observed_by(observer), observer:
        session.call(inputs)
    return tuple(observer.events)


def _of_the_step(events: Sequence[HostEvent], watches: Sequence[StateWatch]) -> Iterator[HostEvent]:
    """Without what changes around the step; with what changes at no line that was seen."""
    outside = {watch.path for watch in watches if watch.is_from_outside}
    yield from (one for one in events if one.name not in outside)
    seen = {one.name for one in events}
    for watch in watches:
        if watch.path not in seen:
            yield HostEvent("python-state", watch.path, op_index=0)


def _later_ways(
    session: Session,
    captured: Sequence[Iteration],
    run: Run,
    events: Sequence[HostEvent],
    watches: Sequence[StateWatch],
) -> Iterator[HostEvent]:
    """Where the step is another one in a later state, or at a later time; not what the recorded ones show.

    Of several ranks none goes another way for a trial: the others would wait for it.
    """
    if MEETING.has_others or not session.device.has_values:
        return
    shapes = captured[0].input_shapes
    alike = [ran(one.ops, one.externals) for one in captured if one.input_shapes == shapes]
    if not are_alike(alike):
        return
    clocks = [event for event in events if event.kind == "host-time"]
    if clocks:
        yield from _at_a_later_time(session, run, alike[0], clocks)
    stops = [watch.path for watch in watches if not watch.is_from_outside]
    if stops and not any(event.kind == "python-decision" for event in events):
        yield from _in_a_later_state(session, run, alike[0], stops)


def _in_a_later_state(
    session: Session, run: Run, usual: Ran, paths: Sequence[str]
) -> Iterator[HostEvent]:
    """All that steps change goes on together; what of it decides is not told apart."""
    roots = session.target.roots
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, paths), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, paths)
        lines = _lines_of_a_step(session)
        found = moves(first, second, moment(roots, paths))
    other = first_other_way(run, usual, found, lines, numbers) if found else None
    if other is not None:
        when = "in a later step" if other.is_far else f"{count_text(other.steps, 'step')} later"
        detail = f"`{_code(other.place)}` does something else {when}"
        for move in found:
            yield HostEvent("python-decision", move.path, 0, location=other.place, detail=detail)


def _at_a_later_time(
    session: Session, run: Run, usual: Ran, clocks: Sequence[HostEvent]
) -> Iterator[HostEvent]:
    """With every clock set forward: one that only times the work decides nothing."""
    with session.from_the_start(capturing=True):
        lines = _lines_of_a_step(session)
    place: Location | None
    try:
        with clocks_ahead(session.target.roots), bounded(lines):
            other = first_difference(usual, run(lambda: None))
        place = other.location if other is not None else None
        is_other = other is not None
    except LeavesStep as left:
        place, is_other = left.place, True
    except GraphDoctorError:
        return
    if is_other and is_as_usual(run, usual, lines):
        names = dict.fromkeys(event.name for event in clocks)
        detail = f"`{_code(place)}` does something else at a later time"
        for name in names:
            yield HostEvent("clock-decision", name, 0, location=place, detail=detail)


def _lines_of_a_step(session: Session) -> Lines:
    lines = Lines()
    with lines.counted():
        session.call(session.inputs(0))
    return lines


def _code(place: Location | None) -> str:
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    return shortened(line) or "the step"
