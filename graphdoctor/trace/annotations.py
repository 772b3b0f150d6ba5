"""What is to be drawn into a trace, as values: named spans on tracks of their own, pointing at events."""

from __future__ import annotations

from msgspec import Struct

# Viewers put what begins with an event before it, and hold times as floats of microseconds.
_WITHIN_NS = 10


class Anchor(Struct, frozen=True, gc=False):
    """A moment on a host thread. `thread` is a place in the trace's list of threads."""

    thread: int
    at_ns: int


def anchor_in(thread: int, start_ns: int, end_ns: int) -> Anchor:
    """At the beginning of an event, and so far inside of it that a viewer takes it for the event's."""
    return Anchor(thread, start_ns + min(_WITHIN_NS, (end_ns - start_ns) // 2))


class Note(Struct, frozen=True):
    """A span on a named track. At each anchor stands an instant, and an arrow joins it to the span.

    `details` are what a viewer shows of the span when it is clicked.
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    details: tuple[tuple[str, str], ...] = ()
    anchors: tuple[Anchor, ...] = ()
