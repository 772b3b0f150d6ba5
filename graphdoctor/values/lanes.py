"""A step, or the beginning of a trace, laid on a host lane and a device lane as pages draw it; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct


class Placement(Struct, frozen=True, array_like=True, gc=False):
    """Where one piece of work lies, in us from the start of the step.

    The host works from `host_at_us` for `host_us` and then waits for the device for `waited_us`.
    The device works for `device_us`; several kernels of one operator are put together, where the
    first began. A piece that puts nothing on the device has 0 for both.
    """

    host_at_us: float
    host_us: float
    waited_us: float
    device_at_us: float
    device_us: float


class EagerOperator(Struct, frozen=True, array_like=True, gc=False):
    """One operator of the eager step.

    `name`, `module`, `file` and `graph` number what `StepLanes` lists; -1 is none. `line` counts from 1,
    and `graph` is the one that takes the operator over.
    """

    name: int
    module: int
    file: int
    line: int
    graph: int
    kernels: int
    at: Placement


class CapturedWork(Struct, frozen=True, array_like=True, gc=False):
    """What runs where graphs are used.

    `number` is that of the operator that still runs eagerly, or of the graph that is launched; -1 of a
    copy into a graph's input and of a wait.
    """

    what: Literal["operator", "graph", "copy", "wait"]
    number: int
    at: Placement


class StepLanes(Struct, frozen=True):
    """One predicted step on `gpu`, eager and with `graphs`, at the middle of every range.

    It begins with an idle device, so it may take a little longer than one of many steps in a row, which
    is what the estimate says. `names`, `modules` and `files` have each text once. `captured` is
    empty where nothing would be a graph.
    """

    gpu: str
    names: tuple[str, ...]
    modules: tuple[str, ...]
    files: tuple[str, ...]
    graphs: tuple[str, ...]
    eager: tuple[EagerOperator, ...]
    captured: tuple[CapturedWork, ...] = ()

    @property
    def eager_us(self) -> float:
        """When host and device have done the eager step."""
        return end_us(one.at for one in self.eager)

    @property
    def captured_us(self) -> float:
        """When they have done the step with graphs."""
        return end_us(one.at for one in self.captured)


def end_us(placements: Iterator[Placement]) -> float:
    """When the last of them ends, on either lane."""
    return max(
        (
            max(at.host_at_us + at.host_us + at.waited_us, at.device_at_us + at.device_us)
            for at in placements
        ),
        default=0.0,
    )


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
