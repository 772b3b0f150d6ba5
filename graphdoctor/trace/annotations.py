"""What is to be drawn into a trace, as values: named spans on tracks of their own, pointing at events."""

from __future__ import annotations

from msgspec import Struct


class Anchor(Struct, frozen=True, gc=False):
    """A moment on a host thread. `thread` is a place in the trace's list of threads."""

    thread: int
    at_ns: int


class Note(Struct, frozen=True):
    """A span on a named track. At each anchor stands an instant, with an arrow from the span.

    `details` are what a viewer shows of the span when it is clicked.
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    details: tuple[tuple[str, str], ...] = ()
    anchors: tuple[Anchor, ...] = ()
