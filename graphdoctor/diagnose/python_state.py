"""Python state that replays leave as it is, and what a step reads outside itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from graphdoctor.values.figures import count_text, names_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import (
    LaterStepRaises,
    OutsideQuery,
    PythonEvent,
    PythonStateChanged,
    WorkForThread,
)
from graphdoctor.values.locations import bracketed
from graphdoctor.values.recording import Recording

_Event = TypeVar("_Event", bound=PythonEvent)
_MOST = 3  # places and names that a sentence has


def stopped_state(recording: Recording, findings: Collection[Finding]) -> tuple[str, ...]:
    """The state that stops, as code names it; what a finding is about on the same line is told there."""
    places = (finding.location for finding in findings)
    told = {(place.file, place.line) for place in places if place is not None}
    names = [
        f"{event.name}{bracketed(event.location)}"
        for event in _on_host(recording, PythonStateChanged)
        if event.location is None or (event.location.file, event.location.line) not in told
    ]
    return tuple(dict.fromkeys(names))


def about_stopped(stopped: Sequence[str]) -> Iterator[str]:
    """What that means, in one remark."""
    if stopped:
        yield (
            f"Each eager step changes {names_text(stopped, most=_MOST)} in Python; replays do not. Later reads"
            " return the value from the capture. Change the state outside the step, or keep it in a GPU tensor."
        )


def raises_later(recording: Recording) -> Iterator[str]:
    """That the step fails in one of its next calls, which no replay does."""
    for event in _on_host(recording, LaterStepRaises):
        yield (
            f"the step was recorded {count_text(event.calls, 'time')} and raised in the next call:"
            f" {event.name}; what comes after that is not known, and no replay raises"
        )


def about_outside(recording: Recording) -> Iterator[str]:
    """Queries of files, sockets, processes and the environment, and work for other threads, in a remark each."""
    events = {event.location: event for event in _on_host(recording, OutsideQuery)}
    found = [f"{event.name}{bracketed(event.location)}" for event in events.values()]
    if found:
        yield (
            f"Each step reads {names_text(found, most=_MOST)}. The result is frozen at capture: a replay does"
            " not read it again. Read it outside the step."
        )
    places = dict.fromkeys(event.location for event in _on_host(recording, WorkForThread))
    for place in places:
        yield (
            f"Each step gives work to another thread{bracketed(place)}, which a replay does not. graphdoctor"
            " does not record that work."
        )


def _on_host(recording: Recording, kind: type[_Event]) -> Iterator[_Event]:
    """Those that the run saw that was watched on the host only: no iteration has them."""
    return (event for event in recording.host if isinstance(event, kind))
