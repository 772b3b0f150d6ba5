"""A session -> what its host draws, reads and changes in a step, and whether a later step goes another way by it."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, closing
from functools import partial

from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.record.clocks import (
    AT_OTHER_TIMES_S,
    FAR_AHEAD_S,
    clocks_ahead,
    tells_of_day,
)
from graphdoctor.record.flips import Flips
from graphdoctor.record.host import HostObserver, NumpyState, numpy_generators, state_of
from graphdoctor.record.later import (
    Later,
    Run,
    bounded,
    first_other_step,
    first_other_way,
    is_as_usual,
    runs_of,
)
from graphdoctor.record.lines import Watch
from graphdoctor.record.moves import moment, moves, numbers_in
from graphdoctor.record.outward import LeavesStep
from graphdoctor.record.python_state import (
    Deciding,
    StateWatch,
    lasting_changes,
    state_watches,
)
from graphdoctor.record.running import Running
from graphdoctor.record.sameness import Ran, are_alike, first_difference, ran
from graphdoctor.record.session import Session
from graphdoctor.record.trials import Trials
from graphdoctor.record.ways import Line, Lines
from graphdoctor.target.state.globals import process_values
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import count_text, shortened
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import HostEvent, Iteration


def host_events(
    session: Session, captured: Sequence[Iteration], trials: Trials
) -> tuple[HostEvent, ...]:
    """What the host drew, read and changed in one iteration, which runs after all that are recorded.

    By then Python has imported what it imports lazily; imports draw random numbers of their own.
    Lines are watched for NumPy's draws only where a first look found that there are some, and for the
    Python state that was seen to change.
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
    of_process = [path for path in changed if path in process_values()]
    events = (
        *_of_the_step(events, watches),
        *(HostEvent("python-state", path, op_index=0) for path in of_process),
    )
    by_steps = [watch for watch in watches if not watch.is_from_outside]
    changing = [*of_process, *(watch.path for watch in by_steps)]
    deciding = [one for watch in by_steps for one in watch.deciding]
    later = _later_ways(session, captured, trials, events, changing, deciding)
    return (*(one for one in events if one.kind != "python-decision"), *later)


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
    trials: Trials,
    events: Sequence[HostEvent],
    changing: Sequence[str],
    deciding: Sequence[Deciding],
) -> Iterator[HostEvent]:
    """Where the step is another one in a later state, or at a later time; not what the recorded ones show.

    Of several ranks none goes another way for a trial: the others would wait for it.
    """
    by_lines = [event for event in events if event.kind == "python-decision"]
    shapes = captured[0].input_shapes
    alike = [ran(one.ops, one.externals) for one in captured if one.input_shapes == shapes]
    if MEETING.has_others or not session.device.has_values or not are_alike(alike):
        yield from by_lines
        return
    clocks = [event for event in events if event.kind == "host-time"]
    if not clocks and not changing:
        return
    usual = trials.moved(lambda: None)
    if clocks:
        yield from _at_a_later_time(session, trials.moved, usual, clocks)
    if changing:
        yield from _in_a_later_state(session, trials, usual, changing, by_lines, deciding)


def _in_a_later_state(
    session: Session,
    trials: Trials,
    usual: Ran,
    paths: Sequence[str],
    by_lines: Sequence[HostEvent],
    deciding: Sequence[Deciding],
) -> Iterator[HostEvent]:
    """What lines decide, as far as nobody saw that nothing comes of it; else what is seen of the whole step.

    All that steps change goes on together; what of it decides is not told apart. What nobody could foresee
    shows where the next steps are run one after the other.
    """
    roots = session.target.roots
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, paths), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, paths)
        lines = _lines_of_a_step(session, {one.line for one in deciding})
        found = moves(first, second, moment(roots, paths))
    flips = Flips(trials, found, lines)
    if not flips.are_all_harmless(deciding):
        yield from by_lines
        return
    names = [move.path for move in found]
    other = first_other_way(trials.moved, usual, found, lines, numbers) if found else None
    if other is None:
        is_foreseen = not set(paths).difference(names)
        names = list(paths)
        other = _in_the_next_steps(trials, usual, lines, is_foreseen=is_foreseen)
    if other is not None:
        when = "in a later step" if other.is_far else f"{count_text(other.steps, 'step')} later"
        detail = f"`{_code(other.place)}` does something else {when}"
        for name in names:
            yield HostEvent("python-decision", name, 0, location=other.place, detail=detail)
    else:
        left = set(deciding).difference(flips.harmless(deciding))
        yield from (
            event for event in by_lines if _is_of(event, left) or not _is_of(event, deciding)
        )


def _is_of(event: HostEvent, deciding: Iterable[Deciding]) -> bool:
    place = event.location
    return place is not None and any(
        (one.path, one.line.code.co_filename, one.line.number)
        == (event.name, place.file, place.line)
        for one in deciding
    )


def _in_the_next_steps(
    trials: Trials, usual: Ran, lines: Lines, *, is_foreseen: bool
) -> Later | None:
    with closing(trials.in_a_row()) as in_a_row:
        found = first_other_step(in_a_row, usual, lines, is_foreseen=is_foreseen)
    return found if found is not None and is_as_usual(trials.moved, usual, lines) else None


def _at_a_later_time(
    session: Session, run: Run, usual: Ran, clocks: Sequence[HostEvent]
) -> Iterator[HostEvent]:
    """With every clock set forward: one that only times the work decides nothing."""
    with session.from_the_start(capturing=True):
        lines = _lines_of_a_step(session)
    names = dict.fromkeys(event.name for event in clocks)
    times = AT_OTHER_TIMES_S if any(map(tells_of_day, names)) else ()
    for ahead_s in (FAR_AHEAD_S, *times[: runs_of(usual)]):
        try:
            with ExitStack() as stack, bounded(lines):
                ahead = clocks_ahead(session.target.roots, ahead_s)
                # After the state was put back: a clock may be known by a name of the user's.
                other = first_difference(usual, run(partial(stack.enter_context, ahead)))
        except LeavesStep as left:
            place = left.place
        except GraphDoctorError:
            continue
        else:
            if other is None:
                continue
            place = other.location
        if is_as_usual(run, usual, lines):
            detail = f"`{_code(place)}` does something else at a later time"
            for name in names:
                yield HostEvent("clock-decision", name, 0, location=place, detail=detail)
        return


def _lines_of_a_step(session: Session, deciding: Set[Line] = frozenset()) -> Lines:
    lines = Lines(deciding=deciding)
    with lines.counted():
        session.call(session.inputs(0))
    return lines


def _code(place: Location | None) -> str:
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    return shortened(line) or "the step"
