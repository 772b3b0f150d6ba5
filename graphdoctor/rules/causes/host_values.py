"""A recording and a kind of host value in, hits where the host drew or read it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from graphdoctor.rules.causes.sources import Source, host_values
from graphdoctor.rules.rule import Hit, at_event
from graphdoctor.values.recording import EventKind, HostEvent, Iteration, Recording
from graphdoctor.values.report import Location


class _Place(Struct, frozen=True):
    location: Location | None
    op_index: int


def host_value_hits(
    recording: Recording, kind: EventKind, message: Callable[[HostEvent], str]
) -> Iterator[Hit]:
    """Hits in every captured iteration: the run that saw the events stands for all of them."""
    for iteration in recording.captured:
        seen: set[_Place] = set()
        for event in host_values(recording):
            place = _Place(event.location, event.op_index)
            if event.kind == kind and place not in seen:
                seen.add(place)
                yield at_event(iteration.index, _within(event, iteration), message(event))


def source_place(source: Source | None) -> Location | None:
    return source.flow.origin if source is not None else None


def _within(event: HostEvent, iteration: Iteration) -> HostEvent:
    last = max(0, len(iteration.ops) - 1)
    return event if event.op_index <= last else structs.replace(event, op_index=last)
