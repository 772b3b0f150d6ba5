"""Explain a folder of traces, one for each rank: every trace, what differs, and the job as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graphdoctor import __version__
from graphdoctor.trace.explain.job import sampled, summarize
from graphdoctor.trace.explain.ranks import RankLane, compare_ranks, rank_lane
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.trace.read.file import read_trace
from graphdoctor.trace.read.names import without_copies
from graphdoctor.values.compared_traces import FolderReport, WorkerDifference
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
    ranks = compare_ranks(
        lanes, workers, lambda one: read_trace(Path(one.file), most_bytes=most_bytes)
    )
    job = summarize(workers, ranks)
    return FolderReport(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        folder=str(folder),
        workers=sampled(workers, job),
        differences=tuple(_differences(workers)),
        failures=tuple(failures),
        ranks=ranks,
        job=job,
    )


def _differences(workers: Sequence[TraceReport]) -> Iterator[WorkerDifference]:
    names = Counter(worker.worker for worker in workers)
    for name, value, least in _FIGURES:
        ordered = sorted(workers, key=value)
        low, high = ordered[0], ordered[-1]
        apart = value(high) - value(low)
        if apart > max(least, 0.0 if least else _RELATIVE * abs(value(high))):
            one, other = (_label(worker, names) for worker in (low, high))
            yield WorkerDifference(name, value(low), one, value(high), other)


def _label(worker: TraceReport, names: Counter[str]) -> str:
    """The worker's name, with its file where several have this name."""
    own = worker.worker
    return own if names[own] == 1 else f"{own} ({Path(worker.file).name})"
