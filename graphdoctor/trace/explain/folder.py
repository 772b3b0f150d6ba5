"""A folder of traces, one a worker -> each explained, what differs between them, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from graphdoctor import __version__
from graphdoctor.trace.arrays import Ints, Trace
from graphdoctor.trace.explain.ranks import Aligned, Delay, RankLane, align, delay_of, rank_lane
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.trace.read.file import read_trace
from graphdoctor.trace.read.names import without_copies
from graphdoctor.values.compared_traces import (
    CollectiveWait,
    FolderReport,
    RankComparison,
    RankTime,
    WorkerDifference,
)
from graphdoctor.values.errors import UsageError
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, TraceReport

_ENDINGS = (".json", ".json.gz", ".sqlite")
_RELATIVE = 0.02  # of a time or a count, and
_SHARE = 0.01  # of a share: less is no difference

_FIGURES: tuple[tuple[str, Callable[[TraceReport], float], float], ...] = (
    ("step_us", lambda one: one.step_us, 0.0),
    ("device_busy_us", lambda one: one.device_busy_ns / 1e3 / one.steps_counted, 0.0),
    ("kernels", lambda one: one.kernels / one.steps_counted, 0.0),
    ("device_busy_share", lambda one: one.device_busy_share, _SHARE),
    ("launch_bound_share", lambda one: one.launch_bound_share, _SHARE),
    ("sync_wait_share", lambda one: one.sync_wait_share, _SHARE),
    ("device_gap_share", lambda one: one.device_gap_share, _SHARE),
    ("graph_kernel_share", lambda one: one.graph_kernel_share, _SHARE),
)


def trace_files(folder: Path) -> list[Path]:
    """The files below the folder that may be traces, by name."""
    found = (path for path in folder.rglob("*") if path.name.endswith(_ENDINGS))
    return without_copies(sorted(path for path in found if path.is_file()))


def explain_folder(
    folder: Path,
    options: TraceOptions,
    tell: Callable[[str], None],
    most_bytes: int | None = None,
) -> FolderReport:
    """Explain every trace of the folder. Raises UsageError where not one can be explained."""
    files = trace_files(folder)
    if not files:
        raise UsageError(
            f"{folder} has no traces: expected files whose names end in .json, .json.gz or .sqlite."
        )
    workers: list[TraceReport] = []
    lanes: list[RankLane] = []
    failures: list[str] = []
    for path in files:
        tell(f"reading {path.name}")
        try:
            trace = read_trace(path, most_bytes=most_bytes)
            workers.append(explain_trace(trace, path, options))
            lanes.append(rank_lane(trace))
        except UsageError as error:
            failures.append(str(error))
    if not workers:
        raise UsageError(f"None of the {len(files)} files can be explained. {failures[0]}")
    return FolderReport(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        folder=str(folder),
        workers=tuple(workers),
        differences=tuple(_differences(workers)),
        failures=tuple(failures),
        ranks=compare_ranks(
            lanes, workers, lambda one: read_trace(Path(one.file), most_bytes=most_bytes)
        ),
    )


def _differences(workers: Sequence[TraceReport]) -> Iterator[WorkerDifference]:
    for name, value, least in _FIGURES:
        ordered = sorted(workers, key=value)
        low, high = ordered[0], ordered[-1]
        apart = value(high) - value(low)
        if apart > max(least, 0.0 if least else _RELATIVE * abs(value(high))):
            yield WorkerDifference(name, value(low), _label(low), value(high), _label(high))


def _label(worker: TraceReport) -> str:
    return f"{worker.worker} ({Path(worker.file).name})"


_WORTH = 0.01  # of a step
_MAINLY = 0.5


def compare_ranks(
    lanes: Sequence[RankLane],
    reports: Sequence[TraceReport],
    read_again: Callable[[TraceReport], Trace],
) -> RankComparison | None:
    """None where there is one rank only, or where nothing is communicated.

    Of all traces only the lanes are kept; `read_again` gives the straggler's, to see what it did meanwhile.
    """
    if len(lanes) < 2 or not any(lane.exchanges for lane in lanes):
        return None
    found = align(lanes, [report.worker for report in reports])
    if isinstance(found, str):
        return RankComparison(problem=found)
    return _compared(reports, found, read_again)


def _compared(
    reports: Sequence[TraceReport], found: Aligned, read_again: Callable[[TraceReport], Trace]
) -> RankComparison:
    start, end = (times - found.offset_ns[:, None] for times in (found.start_ns, found.end_ns))
    latest = start.max(axis=0)
    waiting = np.clip(latest - start, 0, end - start)
    working = end - start - waiting
    who = start.argmax(axis=0)
    second = np.sort(start, axis=0)[-2]
    caused = np.bincount(who, latest - second, len(reports)).astype(np.int64)
    steps = max(1, min(report.steps_counted for report in reports))
    each = 1e3 * steps
    ranks = tuple(
        RankTime(
            worker=report.worker,
            clock_offset_us=int(found.offset_ns[place]) / 1e3,
            waiting_us=int(waiting[place].sum()) / each,
            caused_us=int(caused[place]) / each,
            working_us=int(working[place].sum()) / each,
            compute_us=int(found.compute_ns[place].sum()) / each,
        )
        for place, report in enumerate(reports)
    )
    worst = int(caused.argmax())
    delay = Delay()
    if (
        ranks[worst].caused_us > _WORTH * reports[worst].step_us
        and caused[worst] > _MAINLY * caused.sum()
    ):
        late = np.flatnonzero((who == worst) & (latest > second))
        delay = delay_of(read_again(reports[worst]), found, (worst, late), reports, steps)
    return RankComparison(
        ranks=ranks,
        collectives=len(found.kinds),
        waits=tuple(_waits_by_kind(found.kinds, waiting, working, steps)),
        skew_us=float(np.median(latest - start.min(axis=0))) / 1e3,
        straggler=delay.worker,
        phase=delay.phase,
        reason=delay.reason,
    )


def _waits_by_kind(
    kinds: Sequence[str], waiting: Ints, working: Ints, steps: int
) -> Iterator[CollectiveWait]:
    """What a rank waits and works in collectives of each kind, a step, in the mean of the ranks."""
    each = 1e3 * steps
    for kind in sorted(set(kinds)):
        mine = np.array([one == kind for one in kinds])
        yield CollectiveWait(
            kind=kind,
            runs=int(mine.sum()) / steps,
            waiting_us=float(waiting[:, mine].sum(axis=1).mean()) / each,
            working_us=float(working[:, mine].sum(axis=1).mean()) / each,
        )
