"""A session -> what its host draws, reads, asks and changes in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from graphdoctor.record.host.generators import GeneratorState, generators, state_of
from graphdoctor.record.host.lines import Watch
from graphdoctor.record.host.observer import HostObserver
from graphdoctor.record.host.python_state import StateWatch, lasting_changes, state_watches
from graphdoctor.record.host.running import Running
from graphdoctor.record.session import Session
from graphdoctor.target.state.globals import process_values
from graphdoctor.values.host_events import PythonEvent, PythonStateChanged
from graphdoctor.values.recording import Iteration


class SeenOfHost(NamedTuple):
    """`changing` is the state that each step changes itself: by its path, how code names it."""

    events: tuple[PythonEvent, ...]
    changing: Mapping[str, str]


def seen_of_host(session: Session, captured: Sequence[Iteration]) -> SeenOfHost:
    """What the host drew, read and changed in one iteration, which runs after all that are recorded.

    By then Python has imported what it imports lazily; imports draw random numbers of their own.
    Lines are watched for draws that no call tells of, as NumPy's, only where a first look found that there are
    some, and for the Python state that was seen to change.
    """
    roots = session.target.roots
    known = generators(roots)
    with session.from_the_start(capturing=True):
        before = list(map(state_of, known))
        seen = _watched(session, [])
        unseen = [
            (one, was) for one, was in zip(known, before, strict=True) if id(one) not in seen.asked
        ]
        drawn = [generator for generator, was in unseen if state_of(generator) != was]
    events = tuple(seen.events)
    changed = lasting_changes(captured)
    watches: list[StateWatch] = []
    if drawn or changed:
        with session.from_the_start(capturing=True):
            watches = state_watches(roots, changed)
            by_line = [watch for watch in watches if watch.is_by_line]
            events = tuple(_watched(session, [*map(GeneratorState, drawn), *by_line]).events)
    switches = process_values()
    without_holder = [
        path
        for path, changes in changed.items()
        if path in switches or any(change.kind == "order" for change in changes)
    ]
    events = (*_of_the_step(events, watches), *map(PythonStateChanged, without_holder))
    by_steps = {watch.path: watch.name for watch in watches if not watch.is_from_outside}
    return SeenOfHost(
        events, {**dict(zip(without_holder, without_holder, strict=True)), **by_steps}
    )


def _watched(session: Session, watches: Sequence[Watch]) -> HostObserver:
    inputs = session.inputs(0)
    observer = HostObserver(watches, Running(session.target.roots))
    with session.device.observed_by(observer), observer:
        session.call(inputs)
    return observer


def _of_the_step(
    events: Sequence[PythonEvent], watches: Sequence[StateWatch]
) -> Iterator[PythonEvent]:
    """Without what changes around the step; with what changes at no line that was seen."""
    outside = {watch.name for watch in watches if watch.is_from_outside}
    yield from (one for one in events if one.name not in outside)
    seen = {one.name for one in events}
    for watch in watches:
        if watch.name not in seen:
            yield PythonStateChanged(watch.name)
