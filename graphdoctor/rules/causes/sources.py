"""A recording -> what its host read or drew, where that goes, and the hits on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from msgspec import Struct, structs

from graphdoctor.rules.causes.flow import Flow
from graphdoctor.rules.causes.reads import cpu_reads, flow_from, host_reads, tensor_lines
from graphdoctor.rules.rule import Hit, at_event, once
from graphdoctor.values.host_events import ClockRead, ItemTaken, PythonEvent, RandomDraw
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Recording

_Event = TypeVar("_Event", bound=PythonEvent)
# A graph may freeze their value.
_VALUE_EVENTS = (RandomDraw, ClockRead, ItemTaken)


class Source(Struct, frozen=True):
    """A value that came to the host, and where it goes."""

    kind: Literal["device-read", "cpu-read"] | type[PythonEvent]
    flow: Flow


@once
def sources_of(recording: Recording) -> tuple[Source, ...]:
    """Host reads, random draws, clock reads, items taken and reads of CPU tensors; each place once."""
    by_place: dict[tuple[object, bool, Location | None], Source] = {}
    for read in host_reads(recording):
        key = ("device-read", bool(read.flow.branches), read.op.location)
        by_place.setdefault(key, Source("device-read", read.flow))
    for read in cpu_reads(recording):
        by_place.setdefault(("cpu-read", False, read.op.location), Source("cpu-read", read.flow))
    lines = frozenset(line for iteration in recording.captured for line in tensor_lines(iteration))
    for event in host_values(recording):
        flow = flow_from(event.location, event.stack, lines, recording.lines)
        by_place.setdefault((type(event), False, event.location), Source(type(event), flow))
    return tuple(by_place.values())


def host_values(recording: Recording) -> tuple[PythonEvent, ...]:
    """Random draws, clock reads and items taken, from the separate host run."""
    return tuple(event for event in recording.host if isinstance(event, _VALUE_EVENTS))


def host_value_hits(
    recording: Recording,
    kind: type[_Event],
    message: Callable[[_Event], str],
    fix: Callable[[_Event], str] = lambda event: "",
) -> Iterator[Hit]:
    """Hits in every captured iteration: the run that saw the events stands for all of them."""
    for iteration in recording.captured:
        seen: set[tuple[Location | None, int]] = set()
        for event in host_values(recording):
            place = (event.location, event.op_index)
            if isinstance(event, kind) and place not in seen:
                seen.add(place)
                hit = at_event(iteration.index, _within(event, iteration), message(event))
                yield structs.replace(hit, fix=fix(event))


def host_hits(
    recording: Recording,
    kind: type[_Event],
    message: Callable[[_Event], str],
    fix: Callable[[_Event], str] = lambda event: "",
) -> Iterator[Hit]:
    """Hits in every captured iteration, for what the run that was watched on the host saw."""
    events = {(e.name, e.location): e for e in recording.host if isinstance(e, kind)}
    for iteration in recording.captured:
        for event in events.values():
            hit = at_event(iteration.index, _within(event, iteration), message(event))
            yield structs.replace(hit, fix=fix(event))


def source_place(source: Source | None) -> Location | None:
    return source.flow.origin if source is not None else None


def _within(event: _Event, iteration: Iteration) -> _Event:
    last = max(0, len(iteration.ops) - 1)
    return event if event.op_index <= last else structs.replace(event, op_index=last)
