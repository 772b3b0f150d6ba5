"""A folder of traces, one a worker -> each explained, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graphdoctor import __version__
from graphdoctor.trace.explain.rank_lanes import RankLane, rank_lane
from graphdoctor.trace.explain.ranks import compare_ranks
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
    ("step_us", lambda one: one.span_ns / 1e3 / one.steps_counted, 0.0),
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
