"""Where the device's own time goes in a trace: kernels, lines, copies, collectives, graphs; plain values."""

from __future__ import annotations

from msgspec import Struct

from graphdoctor.values.locations import Location


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
    """Device time of what a function of the user's, modules of one class or an annotation launched itself; a step.

    `host_us` is host time of its own, waits for the device left out; `places` how many modules of the class.
    """

    name: str
    location: Location | None
    kernels: float
    device_us: float
    share: float  # of the device time that has such a place
    host_us: float = 0.0
    places: int = 1


class CopyCost(Struct, frozen=True):
    """Copies of one direction, a step; `host_memory` is pinned, pageable or "" where nobody knows."""

    direction: str
    host_memory: str
    copies: float
    nbytes: float
    device_us: float


class CollectiveCost(Struct, frozen=True):
    """Collectives of one kind, size and process group, a step: in `exposed_us` nothing else ran on the device.

    `nbytes` is of one of them, the larger of its input and output; 0, "" and () where the trace does not say.
    """

    kind: str
    runs: float
    nbytes: int
    device_us: float
    exposed_us: float
    dtype: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()


class Communication(Struct, frozen=True):
    """Collectives of one device, a step: the time in which any ran, and what of it other work overlapped.

    One rank cannot tell the part in which a collective waits for the others from that in which it works.
    """

    device_us: float
    overlapped_us: float
    exposed_us: float
    collectives: tuple[CollectiveCost, ...] = ()  # what took longest first


class GraphReplay(Struct, frozen=True):
    """The replays of one graph: kernels and host time of one launch, launches and device time of a step.

    `graph_id` is 0 where the profiler wrote none, `maker` "" where the trace does not say who replays it.
    """

    graph_id: int
    maker: str
    location: Location | None  # of the user's function that launches
    launches: float
    kernels: float  # copies and fills included
    launch_us: float
    device_us: float
    longest_kernels: tuple[str, ...]


class MemoryUse(Struct, frozen=True):
    """The device's memory by the allocator's own words, in the steps; growth is in the median of steps.

    Allocations are of one step; `allocations_in_gaps` are those that were made while the device idled.
    """

    peak_allocated_bytes: int | None  # None where the profiler (of 2021) did not write what is held
    peak_reserved_bytes: int | None
    growth_bytes: float | None  # None of one step, too
    reserved_growth_bytes: float | None
    allocations: float
    allocated_bytes: float
    allocations_in_gaps: float


class GraphUse(Struct, frozen=True):
    """CUDA graphs in the steps, a step: capturing and instantiating belongs before them.

    `finding` says so where steps make graphs, "" where they only launch them.
    """

    launches: float
    kernels: float  # in launches of graphs
    captures: float
    instantiations: float
    instantiation_us: float  # host time
    location: Location | None = None  # of the user's function that instantiates, or captures
    made_in_steps: int = 0  # in how many steps any was captured or instantiated
    finding: str = ""
    replays: tuple[GraphReplay, ...] = ()


class DeviceWork(Struct, frozen=True):
    """Where the device's own time goes."""

    kernels: tuple[KernelCost, ...] = ()
    families: tuple[FamilyCost, ...] = ()
    lines: tuple[LineWork, ...] = ()
    modules: tuple[LineWork, ...] = ()
    annotations: tuple[LineWork, ...] = ()
    copies: tuple[CopyCost, ...] = ()
    copies_exposed_us: float = 0.0  # a step: copies between host and device, and nothing else
    communication: Communication | None = None  # where there is any
    memory: MemoryUse | None = None  # where it was recorded
