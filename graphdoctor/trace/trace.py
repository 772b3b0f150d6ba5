"""A profiler trace as plain values: device events, API calls, operators, steps; integer ns."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class DeviceEvent(Struct, frozen=True, gc=False):
    """A kernel, copy or fill. `correlation` joins it to its API call, in a graph N to 1."""

    kind: Literal["kernel", "memcpy", "memset"]
    name: str
    start_ns: int
    end_ns: int
    device: int
    stream: int
    correlation: int | None = None
    external_id: int | None = None
    nbytes: int = 0


class ApiCall(Struct, frozen=True, gc=False):
    """A CUDA runtime or driver call on a host thread."""

    name: str
    start_ns: int
    end_ns: int
    thread: int | str
    correlation: int | None = None
    external_id: int | None = None


class OperatorEvent(Struct, frozen=True):
    """An operator on a host thread; shapes are there only when the profiler recorded them."""

    name: str
    start_ns: int
    end_ns: int
    thread: int | str
    external_id: int | None = None
    dims: tuple[Any, ...] | None = None
    strides: tuple[Any, ...] | None = None
    dtypes: tuple[Any, ...] | None = None
    concrete: tuple[Any, ...] | None = None


class StepMark(Struct, frozen=True, gc=False):
    """One `ProfilerStep#N` annotation of the host."""

    name: str
    start_ns: int
    end_ns: int


class Trace(Struct, frozen=True):
    """One trace file; every tuple is ordered by start."""

    device_names: tuple[str, ...]
    device_events: tuple[DeviceEvent, ...]
    calls: tuple[ApiCall, ...]
    operators: tuple[OperatorEvent, ...]
    steps: tuple[StepMark, ...]


GRAPH_LAUNCHES = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})


def is_launch(call: ApiCall) -> bool:
    """Whether the call puts work on the device: a kernel, a copy, a fill or a whole graph."""
    name = call.name
    return "Launch" in name or "Memcpy" in name or "Memset" in name
