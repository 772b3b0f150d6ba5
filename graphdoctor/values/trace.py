"""What graphdoctor says of a trace, and of traces compared: plain values with a published schema."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.lanes import TraceLanes
from graphdoctor.values.locations import Location
from graphdoctor.values.speed import Term


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
    """Copies of one direction, a step; `host_memory` is pinned, pageable or "" if it is not known."""

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


TRACE_SCHEMA_VERSION = 2

TraceVerdict = Literal[
    "launch-bound", "sync-bound", "host-bound", "gpu-bound", "mixed", "cannot-tell"
]
Confidence = Literal["high", "medium", "low"]
WorkKind = Literal[
    "data-loading", "preprocessing", "allocation", "garbage-collection", "compilation",
    "graph-instantiation", "logging", "files", "optimizer", "another-thread", "sleep", "lock",
    "warm-up", "sync", "ordinary", "unrecorded",
]  # fmt: skip
WORK_WORDS: dict[WorkKind, str] = {
    "data-loading": "data loading",
    "preprocessing": "preprocessing",
    "allocation": "memory allocation",
    "garbage-collection": "garbage collection",
    "compilation": "compilation",
    "graph-instantiation": "graph capture and instantiation",
    "logging": "logging",
    "files": "reading and writing files",
    "optimizer": "the optimizer",
    "another-thread": "another thread's Python (the GIL)",
    "sleep": "sleep",
    "lock": "waiting for another thread or process",
    "warm-up": "warm-up",
    "sync": "waiting for the device",
    "ordinary": "Python and operators",
    "unrecorded": "nothing that the profiler recorded",
}
StepBasis = Literal["annotations", "repeating launches", "whole span"]


class DeviceTime(Struct, frozen=True, kw_only=True):
    """Where one device's time went in the steps that count; every share is of `span_ns`.

    device_busy: a kernel, copy or fill ran on some stream. The rest is idle: launch_bound is
    host (it had not reached the launch yet) and launch_path (it was in the launch); sync_wait: the
    host waited for the device; device_gap: the work was queued already (graph_gap of it between
    two nodes of one graph); unattributed: the trace has no launch for what came next.
    device_busy + launch_bound + sync_wait + device_gap + unattributed = span, to the nanosecond.
    warm_up is idle time in cold starts (code loading, first calls of a library), which the span leaves out.
    """

    device: str
    gpu: str
    span_ns: int
    device_busy_ns: int
    idle_ns: int
    launch_bound_ns: int
    host_ns: int
    launch_path_ns: int
    sync_wait_ns: int
    device_gap_ns: int
    graph_gap_ns: int
    unattributed_ns: int
    device_busy_share: float
    idle_share: float
    launch_bound_share: float
    sync_wait_share: float
    device_gap_share: float
    unattributed_share: float
    device_events: int
    kernels: int
    joined_share: float  # of the device events, with a launch in the trace
    graph_kernel_share: float  # of the kernels, launched inside graphs
    warm_up_ns: int = 0


class StepTime(Struct, frozen=True):
    """One step on the device; `left_out` is the reason why it does not count, "" if it does."""

    name: str
    span_ns: int
    device_busy_ns: int
    device_events: int
    left_out: str = ""


class StepKind(Struct, frozen=True):
    """Steps of the same kernels, but for some; times and shares are of one step of this kind."""

    example: str  # the name of its first step
    steps: int
    fewest_events: int
    most_events: int
    span_us: float
    device_busy_share: float
    launch_bound_share: float
    sync_wait_share: float
    counts: bool  # whether the report's figures are of this kind


class Gap(Struct, frozen=True):
    """One gap in the device's work, with the parts that explain it; they sum to its length."""

    at_ns: int  # from the start of the analysed time
    length_ns: int
    host_ns: int
    launch_path_ns: int
    sync_wait_ns: int
    device_gap_ns: int
    unattributed_ns: int
    kernel: str  # that ended it
    launch: str  # the call that launched the kernel
    operator: str
    sync: str  # the call in which the host waited
    location: Location | None = None
    doing: str = ""  # the innermost that the host was in, in the middle of the gap
    doing_at: Location | None = None  # the user's function around that
    warm_up_ns: int = 0  # of host, launch path and sync wait: cold starts


class IdleKind(Struct, frozen=True):
    """Idle time, a step, in which the host did one kind of work; the share is of all idle time."""

    kind: WorkKind
    idle_us: float
    share: float


class GapCause(Struct, frozen=True):
    """What the host did, in one place of the program, while the device idled; a step.

    `kind` is what that place is known for, "ordinary" for Python and operators that launch the
    model; `name` the innermost operator, call or function of most of it.
    """

    kind: WorkKind
    name: str
    location: Location | None
    idle_us: float
    share: float  # of all idle time


class HostCost(Struct, frozen=True):
    """An operator or a function of the user: host time of its own in one step, waits left out."""

    name: str
    location: Location | None  # of the function's first line, which is all that profilers write
    calls: float
    host_us: float
    share: float  # of the host time of all


class SyncCost(Struct, frozen=True):
    """Calls in which the host waited for the device, from one place of the program; a step."""

    call: str
    operator: str
    location: Location | None
    count: float
    host_wait_us: float  # the host was in the call
    device_idle_us: float  # the device had nothing to do meanwhile


class LaunchTotal(Struct, frozen=True):
    """The launches by one API call, a step: a graph launch starts many kernels."""

    call: str
    launches: float
    events: float  # kernels, copies and fills
    host_us: float  # time in the calls
    device_us: float


class QueuePoint(Struct, frozen=True):
    """The most that was launched and not yet begun in an interval."""

    at_us: float  # from the start of the analysed time
    depth: int


class Queue(Struct, frozen=True):
    """Queue depth over time; `median_delay_us` is from a launch to its start on the device."""

    most: int = 0
    median_delay_us: float | None = None
    points: tuple[QueuePoint, ...] = ()


class Doubt(Struct, frozen=True):
    """Something about the trace that makes its figures less certain; `corrected` if they allow for it."""

    kind: str
    text: str
    corrected: bool = False


class TracePrediction(Struct, frozen=True):
    """One step without the profiler: as it is, with graphs, and without its waits.

    `wall_us` is the time that the user measured without a profiler; without it, the profiler's
    slowness is a guess, and eager_us a range. `simulation_error`: how far the replay of the step
    as profiled is from the trace, as a share.
    """

    wall_us: float | None
    profiler_factor: Range
    eager_us: Range
    graph_us: Range
    speedup: Range
    without_syncs_us: Range
    launch_bound_share: Range
    device_busy_us: float
    regions: float  # graphs a step
    launches_captured: float  # a step
    syncs: float  # a step
    simulation_error: float
    terms: tuple[Term, ...] = ()


class TraceReport(DeviceTime, frozen=True, kw_only=True):
    """One trace explained. The times are those of the device with the most events."""

    schema_version: int
    tool_version: str
    file: str
    worker: str
    events: int
    verdict: TraceVerdict
    reason: str
    advice: str
    confidence: Confidence
    step_basis: StepBasis
    steps_counted: int
    steps: tuple[StepTime, ...]
    devices: tuple[DeviceTime, ...]
    prediction: TracePrediction | None
    doubts: tuple[Doubt, ...]
    syncs: tuple[SyncCost, ...]
    operators: tuple[HostCost, ...]
    lines: tuple[HostCost, ...]
    launches: tuple[LaunchTotal, ...]
    queue: Queue
    longest_gaps: tuple[Gap, ...]
    warnings: tuple[str, ...] = ()
    idle_kinds: tuple[IdleKind, ...] = ()
    step_kinds: tuple[StepKind, ...] = ()  # where there are several
    no_prediction: str = ""  # why there is none
    work: DeviceWork = DeviceWork()
    graphs: GraphUse | None = None  # where there are any
    gap_causes: tuple[GapCause, ...] = ()
    drawn: TraceLanes | None = None

    @property
    def step_us(self) -> float:
        """One step on the device, in the mean of those that count."""
        return self.span_ns / 1e3 / self.steps_counted


ChangeWhat = Literal["kernel", "operator", "function", "idle"]


class WorkerDifference(Struct, frozen=True):
    """One figure that differs between the workers of a run."""

    figure: str
    low: float
    low_worker: str
    high: float
    high_worker: str


class RankTime(Struct, frozen=True):
    """One rank in the collectives of all of them, a step, on one clock.

    `waiting_us`: it was in collectives that another rank had not begun; `working_us`: in those that all had
    begun. `caused_us`: the others waited for it, the last to begin. `compute_us`: other work of its device.
    """

    worker: str
    clock_offset_us: float  # of this rank's clock, against the first one's
    waiting_us: float
    caused_us: float
    compute_us: float
    working_us: float


class CollectiveWait(Struct, frozen=True):
    """Collectives of one kind in the mean of the ranks, a step: waiting for the last to begin, and working."""

    kind: str
    runs: float
    waiting_us: float
    working_us: float


class RankComparison(Struct, frozen=True):
    """The ranks of a run, compared; `problem` says why they could not be compared."""

    ranks: tuple[RankTime, ...] = ()
    collectives: int = 0  # that all ranks have in common
    waits: tuple[CollectiveWait, ...] = ()
    skew_us: float = 0.0  # from the first to the last rank's beginning, in the median
    straggler: str = ""  # "" where no rank is waited for much more than the others
    phase: str = ""  # of the step, where the straggler spends most of that time; "" if nothing says
    reason: str = ""
    problem: str = ""


class RankGroup(Struct, frozen=True, kw_only=True):
    """Ranks whose shares of the time are within a tenth of those of the first; ranges are least, median, most.

    `verdict`, `reason` and `advice` are those of most of the ranks. `idle_through_syncs` is of the ranks that are
    sync-bound by their prediction: the part of the idle time that goes without host syncs.
    """

    workers: tuple[str, ...]
    verdict: TraceVerdict
    reason: str
    advice: str
    step_us: Range
    device_busy_share: Range
    launch_bound_share: Range
    sync_wait_share: Range
    communication_share: Range
    idle_through_syncs: Range | None = None


class Job(Struct, frozen=True, kw_only=True):
    """The ranks of a folder as one job; ranges are least, median and most of the ranks.

    `reason` says which rank is the slowest and why, `advice` what to do, once for all ranks.
    `communication_share` is of collectives during which nothing else ran.
    """

    slowest: str  # "" where the ranks take as long
    reason: str
    advice: str
    step_us: Range
    communication_share: Range
    groups: tuple[RankGroup, ...]  # the largest first


class FolderReport(Struct, frozen=True, kw_only=True):
    """Every trace of a folder, and what differs between them.

    Of a large job a few ranks keep their lanes, gaps and long lists: the slowest, the fastest, one of each group.
    """

    schema_version: int
    tool_version: str
    folder: str
    workers: tuple[TraceReport, ...]
    differences: tuple[WorkerDifference, ...]
    left_out: str = ""  # which files of earlier profiler cycles are not read
    failures: tuple[str, ...] = ()  # files that could not be read, with the reason
    ranks: RankComparison | None = None
    job: Job | None = None  # of two ranks and more


class TraceChange(Struct, frozen=True):
    """One thing whose time in a step changed: 0 before for what is new, 0 after for what is gone."""

    what: ChangeWhat
    name: str
    before_us: float
    after_us: float


class ChangeTerm(Struct, frozen=True):
    """A part of a step before and after; the terms sum to the step."""

    name: str
    before_us: float
    after_us: float


class TraceComparison(Struct, frozen=True, kw_only=True):
    """Two traces of the same program, before a change and after it."""

    schema_version: int
    tool_version: str
    before: TraceReport
    after: TraceReport
    sentence: str
    changes: tuple[TraceChange, ...]  # what changed most first
    kernels_new: tuple[str, ...]
    kernels_gone: tuple[str, ...]
    terms: tuple[ChangeTerm, ...] = ()  # of the step without the profiler, where both are predicted
    without_profiler: bool = False  # whether the terms are
    ratio: Range | None = None  # time of a step before over that after: above 1 is faster


AnyTrace = TraceReport | FolderReport | TraceComparison  # what `graphdoctor trace` saves
