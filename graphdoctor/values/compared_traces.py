"""What graphdoctor says of traces beside each other: the workers of a run, or before and after a change."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.trace import TraceReport, TraceVerdict

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
    """The ranks of a run beside each other; `problem` says why they could not be compared."""

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
    `communication_share` is of collectives beside which nothing else ran.
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
