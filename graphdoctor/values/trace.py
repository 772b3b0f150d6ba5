"""What graphdoctor says of a trace: plain values with a published JSON schema; no numpy."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.locations import Location
from graphdoctor.values.speed import Term
from graphdoctor.values.trace_lanes import TraceLanes
from graphdoctor.values.trace_work import DeviceWork, GraphUse

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
