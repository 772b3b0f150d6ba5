"""The beginning of a trace's steps, event by event, as a page draws it; plain values."""

from __future__ import annotations

from msgspec import Struct


class LaneEvent(Struct, frozen=True, array_like=True, gc=False):
    """A stretch of time, in ns from the start of the lanes; `name` numbers their names."""

    at_ns: int
    length_ns: int
    name: int


class LaneGap(Struct, frozen=True, array_like=True, gc=False):
    """A gap in the device's work. Its parts follow each other in this order, and sum to its length.

    `kernel` ended it and `doing` is what the host was in, in the middle of it; -1 is unknown.
    """

    at_ns: int
    sync_wait_ns: int
    host_ns: int
    launch_path_ns: int
    device_gap_ns: int
    unattributed_ns: int
    kernel: int
    doing: int


class TraceLanes(Struct, frozen=True):
    """One device and the thread that launches, from the first step that counts on.

    `begin_ns` is the start of the lanes on the trace's own clock. `steps` are as many as can be drawn:
    `is_all` says whether those are all. What runs beside other work of the device, on another stream, is left out
    of `device`, and what lies in another operator out of `host`; `waits` are calls in which the host waited.
    """

    begin_ns: int
    span_ns: int
    is_all: bool
    names: tuple[str, ...]
    steps: tuple[LaneEvent, ...]
    host: tuple[LaneEvent, ...]
    waits: tuple[LaneEvent, ...]
    device: tuple[LaneEvent, ...]
    gaps: tuple[LaneGap, ...]
