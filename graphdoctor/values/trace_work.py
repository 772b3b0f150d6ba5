"""Where the device's own time goes in a trace: kernels, lines, copies, collectives, graphs; plain values."""

from __future__ import annotations

from msgspec import Struct

from graphdoctor.values.report import Location


class KernelCost(Struct, frozen=True):
    """All runs of one kernel, copy or fill, a step; the share is of the time of all of them."""

    name: str
    family: str
    operator: str  # that launched most of its runs
    runs: float
    device_us: float
    share: float


class FamilyCost(Struct, frozen=True):
    """Kernels of one family of work, a step."""

    family: str
    runs: float
    device_us: float
    share: float


class LineWork(Struct, frozen=True):
    """Device time of what one of the user's functions, or one module, launched itself; a step."""

    name: str
    location: Location | None
    kernels: float
    device_us: float
    share: float  # of the device time that has such a place


class CopyCost(Struct, frozen=True):
    """Copies of one direction, a step; `host_memory` is pinned, pageable or "" where nobody knows."""

    direction: str
    host_memory: str
    copies: float
    nbytes: float
    device_us: float


class CollectiveCost(Struct, frozen=True):
    """Kernels of one collective, a step: in `exposed_us` nothing else ran on the device.

    One rank cannot tell the part in which a collective waits for the others from that in which it works.
    """

    kind: str
    runs: float
    nbytes: float  # 0 where the trace does not say
    device_us: float
    exposed_us: float


class GraphUse(Struct, frozen=True):
    """CUDA graphs in the steps, a step: capturing and instantiating belongs before them."""

    launches: float
    kernels: float  # in launches of graphs
    captures: float
    instantiations: float
    instantiation_us: float  # host time
    location: Location | None = None  # of the user's function that instantiates


class DeviceWork(Struct, frozen=True):
    """Where the device's own time goes."""

    kernels: tuple[KernelCost, ...] = ()
    families: tuple[FamilyCost, ...] = ()
    lines: tuple[LineWork, ...] = ()
    modules: tuple[LineWork, ...] = ()
    copies: tuple[CopyCost, ...] = ()
    collectives: tuple[CollectiveCost, ...] = ()
