"""A recording -> the Python state that replays leave as it is, and what hangs on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphdoctor.target.state.plain import inner_path
from graphdoctor.values.figures import count_text, names_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import HostKind, PythonEvent
from graphdoctor.values.locations import Location, bracketed
from graphdoctor.values.recording import Recording

_MOST = 3  # places and names that a sentence has


def stopped_state(recording: Recording, findings: Collection[Finding]) -> tuple[str, ...]:
    """The state that stops, as code names it; what a finding is about on the same line is told there."""
    told = {finding.location for finding in findings if finding.location is not None}
    events = _on_host(recording, "python-state")
    return tuple(dict.fromkeys(_said(one) for one in events if not _is_on(one.location, told)))


def about_stopped(stopped: Sequence[str]) -> Iterator[str]:
    """What that means, in one remark."""
    if stopped:
        yield (
            f"Each step changes {names_text(stopped, most=_MOST)} in Python, and a replay runs no Python:"
            " code that reads it later finds what the capture left. Change it outside the step, or keep it"
            " in a tensor on the device."
        )


def decided_by_stopped(recording: Recording) -> Iterator[str]:
    """Lines that choose another way in a later step, or may, and never in a later replay."""
    by_place: dict[Location | None, dict[str, PythonEvent]] = {}
    for event in _on_host(recording, "python-decision"):
        by_place.setdefault(event.location, {}).setdefault(inner_path(event.name), event)
    for place, events in by_place.items():
        names = names_text(tuple(events))
        known = next((event.detail for event in events.values() if event.detail), "")
        if known:
            code, _, when = known.rpartition("` ")
            yield f"{code}`{bracketed(place)} {when}, since each step changes {names} in Python; no replay does"
        else:
            yield (
                f"each step changes {names} in Python, by which it chooses its way{bracketed(place)}: a later step may"
                " go another one, and no replay does"
            )


def decided_by_clocks(recording: Recording) -> Iterator[str]:
    """Lines that go another way once some time has passed."""
    found = {event.location: event for event in _on_host(recording, "clock-decision")}
    for place, event in found.items():
        code, _, when = event.detail.rpartition("` ")
        yield f"{code}`{bracketed(place)} {when}, by {event.name}; no replay reads a clock"


def raises_later(recording: Recording) -> Iterator[str]:
    """That the step fails in one of its next calls, which no replay does."""
    for event in _on_host(recording, "raises-later"):
        yield (
            f"the step was recorded {count_text(int(event.detail), 'time')} and raised in the next call:"
            f" {event.name}; what comes after that is not known, and no replay raises"
        )


def taken_from_outside(recording: Recording) -> Iterator[str]:
    """What a step takes from an iterator or a queue that goes on behind it."""
    found: dict[str, PythonEvent] = {}
    for event in _on_host(recording, "running-iterator"):
        if event.name not in found or found[event.name].location is None:
            found[event.name] = event
    for name, event in found.items():
        yield (
            f"each step takes the next item of {name}{bracketed(event.location)}, which runs on behind it: what"
            " comes later may be another one, and no replay takes any"
        )


def asked_outside(recording: Recording, *, is_guarded: bool = False) -> Iterator[str]:
    """What a step asks of the world outside it, where the answer may decide, and no guard asks for it."""
    answers = ("decides",) if is_guarded else ("decides", "decides-as-set")
    for event in _asked(recording, *answers):
        yield (
            f"each step asks what lies outside it by {_with_line(event)}: later it may be told something else,"
            " and no replay asks"
        )


def about_outside(recording: Recording) -> Iterator[str]:
    """What it asks of the machine and of the environment, in one remark."""
    found = _asked(recording, "measures", "configures")
    if found:
        yield (
            f"Each step asks for {'; '.join(map(_with_line, found[:_MOST]))}, and no replay does: it goes on with"
            " the answer that the capture got."
        )


def _asked(recording: Recording, *answers: str) -> list[PythonEvent]:
    events = (event for event in _on_host(recording, "outside") if event.detail in answers)
    return list({event.location: event for event in events}.values())


def in_other_threads(recording: Recording) -> Iterator[str]:
    """Work that no recording has."""
    for place in dict.fromkeys(event.location for event in _on_host(recording, "other-thread")):
        yield f"the step gives work to another thread{bracketed(place)}: what runs there is not recorded"


def _on_host(recording: Recording, kind: HostKind) -> Iterator[PythonEvent]:
    """Those that the run saw that was watched on the host only: no iteration has them."""
    return (event for event in recording.host if event.kind == kind)


def _said(event: PythonEvent) -> str:
    return f"{inner_path(event.name)}{bracketed(event.location)}"


def _with_line(event: PythonEvent) -> str:
    return f"{event.name}{bracketed(event.location)}"


def _is_on(place: Location | None, told: Collection[Location]) -> bool:
    return place is not None and any(
        (one.file, one.line) == (place.file, place.line) for one in told
    )
