"""One step laid on a host lane and a device lane, operator by operator; plain data, no torch."""

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
