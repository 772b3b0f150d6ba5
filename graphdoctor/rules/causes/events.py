"""A recording and a kind of host event in, one hit for each such event out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from graphdoctor.rules.rule import Hit, Rule, at_event
from graphdoctor.values.recording import EventKind, HostEvent, Recording


def event_hits(
    recording: Recording, kind: EventKind, message: Callable[[HostEvent], str]
) -> Iterator[Hit]:
    """Hits in the iterations that ran as if captured, in execution order."""
    for iteration in recording.captured:
        for event in iteration.events:
            if event.kind == kind:
                yield at_event(iteration.index, event, message(event))


class EventRule(Rule):
    """A hazard that is one kind of host event; `says` follows what was called in the message."""

    kind: ClassVar[EventKind]
    says: ClassVar[str]

    def check(self, recording: Recording) -> Iterator[Hit]:
        return event_hits(recording, self.kind, lambda event: f"{event.name}{self.says}")
