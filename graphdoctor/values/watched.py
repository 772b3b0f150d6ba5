"""What watching a running program gives: counts, rates and reasons; plain data, a published JSON schema."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.locations import Location
from graphdoctor.values.program import Ending

WATCH_SCHEMA_VERSION = 2

State = Literal["running", "terminated"] | Ending
Device = Literal["watched", "not used", "none"]


class Rate(Struct, frozen=True):
    """Events per second: the mean over windows, and its 95% interval where there were enough of them."""

    per_s: float
    low: float | None = None
    high: float | None = None


class SampledCalls(Struct, frozen=True):
    """What CUPTI saw in short windows, where they were asked for.

    Counts are of the windows only, rates are extrapolated.
    `seen_s` is the length of the windows together. `launches` are calls that launch one kernel,
    `graph_launches` those that launch a whole graph. `operations` ran on the device (kernels,
    copies and fills), of which `operations_in_graphs` came from graphs. `syncs` are calls that wait
    for the device, by name; `copies` are by direction. CUPTI slows the host, so rates are low;
    shares are not touched by that.
    """

    windows: int = 0
    seen_s: float = 0.0
    launches: int = 0
    graph_launches: int = 0
    operations: int = 0
    operations_in_graphs: int = 0
    syncs: dict[str, int] = {}
    copies: dict[str, int] = {}
    launch_rate: Rate | None = None
    graph_launch_rate: Rate | None = None
    sync_rate: Rate | None = None
    copy_rate: Rate | None = None

    @property
    def lacks_work(self) -> bool:
        """Whether launches were seen and none of their work on the device: copies are not known then."""
        return self.launches + self.graph_launches > 0 and self.operations == 0


class WatchedAllocator(Struct, frozen=True):
    """What CUDA's caching allocator counted on all devices.

    `allocations` are made by eager work, nearly one for each operator that makes a tensor, and by
    captures; a replay makes none. `from_driver` of them asked the driver, which waits for the device.
    `retries` came after all that was cached had been given back.
    """

    allocations: int = 0
    from_driver: int = 0
    retries: int = 0


class WatchedGraphs(Struct, frozen=True):
    """The CUDA graphs that one line of the program captured. All counted, none sampled.

    `alive` graphs still exist. `again` are the captures after graphs of this line had begun to be
    replayed. `last_capture_s` counts from the start of the program.
    """

    location: Location | None
    captures: int
    again: int
    alive: int
    replays: int
    last_capture_s: float


class WatchedModel(Struct, frozen=True):
    """Calls of models that `graphdoctor.capture` made of one class: replayed, or eager and why."""

    name: str
    replayed: int
    eager: dict[str, int]


class Recompiled(Struct, frozen=True):
    """A function that torch.compile compiled again, and the guard that failed the last time."""

    location: Location
    count: int
    reason: str = ""


class WatchedCompile(Struct, frozen=True):
    """What torch.compile counted: `skips` are compiled graphs for which it made no CUDA graph."""

    recompiled: tuple[Recompiled, ...] = ()
    graph_breaks: dict[str, int] = {}
    skips: int = 0
    skip_reasons: dict[str, int] = {}


class WatchCost(Struct, frozen=True):
    """What windows of CUPTI took at most, with opening, closing and reading; 0 where there were none.

    `setup_s` is the profiler's own start, once. `share` is that of the windows in the program's time;
    what CUPTI costs each launch between them is not in it.
    """

    setup_s: float
    windows_s: float
    share: float


class WatchReport(Struct, frozen=True):
    """A watched program. `wall_s` is its time so far; `exit_code` is None while it runs.

    `rank` is that of the process where torchrun started several; None where there is one. `allocator` is
    None where the program has another one than CUDA's caching allocator. `waits` are calls that wait for
    the device by their name, such as torch.cuda.synchronize(): counted, and without those of operators
    such as `.item()`.
    """

    schema_version: int
    tool_version: str
    command: tuple[str, ...]
    rank: int | None
    state: State
    exit_code: int | None
    wall_s: float
    device: Device
    allocator: WatchedAllocator | None
    waits: dict[str, int]
    calls: SampledCalls
    graphs: tuple[WatchedGraphs, ...]
    models: tuple[WatchedModel, ...]
    compiled: WatchedCompile
    cost: WatchCost
    notes: tuple[str, ...] = ()

    @property
    def replays(self) -> int:
        return sum(each.replays for each in self.graphs)

    @property
    def captures(self) -> int:
        return sum(each.captures for each in self.graphs)

    @property
    def eager_calls(self) -> int:
        return sum(sum(model.eager.values()) for model in self.models)

    @property
    def recompiles(self) -> int:
        return sum(each.count for each in self.compiled.recompiled)
