"""Explain a folder of traces, one for each rank: every trace, what differs, and the job as a whole."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from msgspec import structs

from graphdoctor import __version__
from graphdoctor.trace.arrays import median_of
from graphdoctor.trace.explain.ranks import RankLane, compact, compare_ranks, rank_lane
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.trace.explain.verdict import idle_through_syncs
from graphdoctor.trace.read.blocks import ENDINGS, RemotePath, TracePath
from graphdoctor.trace.read.file import read_trace
from graphdoctor.trace.read.names import newest_cycles, without_copies
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range, count_text, time_text
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    FolderReport,
    Job,
    RankComparison,
    RankGroup,
    TraceReport,
    WorkerDifference,
)

_ALIKE = 0.1  # of the time, in each share
_APART = 0.02  # of the median step
_MUCH = 0.3  # of a step
MOST_IN_FULL = 16  # ranks that keep their lanes, gaps and long lists
_FEW_ROWS = 3


def communication_share(report: TraceReport) -> float:
    """Return which share of a step collectives take beside which nothing else runs."""
    found = report.work.communication
    return found.exposed_us / report.step_us if found and report.step_us else 0.0


_SHARES: dict[str, Callable[[TraceReport], float]] = {
    "device_busy_share": lambda report: report.device_busy_share,
    "launch_bound_share": lambda report: report.launch_bound_share,
    "sync_wait_share": lambda report: report.sync_wait_share,
    "communication_share": communication_share,
}


def summarize(workers: Sequence[TraceReport], ranks: RankComparison | None) -> Job | None:
    """Summarize the ranks; None for fewer than two."""
    if len(workers) < 2:
        return None
    groups = sorted(_groups(workers), key=lambda group: -len(group))
    step_us, exposed = (
        _range(workers, lambda one: one.step_us),
        _range(workers, communication_share),
    )
    slowest, reason = _slowest(workers, ranks, step_us)
    described = tuple(_describe(group) for group in groups)
    advice = described[0].advice
    if ranks is not None and ranks.straggler:
        advice = f"Start with {ranks.straggler}: the other ranks wait for it, whatever else they wait for."
    elif exposed.mid > _MUCH:
        advice = (
            f"Collectives take {exposed.mid:.0%} of a step while nothing is computed: overlap them with computation,"
            " or send less."
        )
    return Job(
        slowest=slowest,
        reason=reason,
        advice=advice,
        step_us=step_us,
        communication_share=exposed,
        groups=described,
    )


def _groups(workers: Sequence[TraceReport]) -> list[list[TraceReport]]:
    groups: list[list[TraceReport]] = []
    for worker in workers:
        for group in groups:
            if all(abs(share(worker) - share(group[0])) <= _ALIKE for share in _SHARES.values()):
                group.append(worker)
                break
        else:
            groups.append([worker])
    return groups


def _describe(group: Sequence[TraceReport]) -> RankGroup:
    (verdict, _), *_ = Counter(one.verdict for one in group).most_common(1)
    first = next(one for one in group if one.verdict == verdict)
    through_syncs = [
        idle_through_syncs(one.prediction)
        for one in group
        if one.verdict == "sync-bound" and one.prediction is not None
    ]
    return RankGroup(
        workers=tuple(one.worker for one in group),
        verdict=verdict,
        reason=first.reason,
        advice=first.advice,
        step_us=_range(group, lambda one: one.step_us),
        idle_through_syncs=Range(min(through_syncs), median_of(through_syncs), max(through_syncs))
        if through_syncs
        else None,
        **{name: _range(group, share) for name, share in _SHARES.items()},
    )


def _range(workers: Sequence[TraceReport], figure: Callable[[TraceReport], float]) -> Range:
    values = [figure(one) for one in workers]
    return Range(min(values), median_of(values), max(values))


def _slowest(
    workers: Sequence[TraceReport], ranks: RankComparison | None, step_us: Range
) -> tuple[str, str]:
    """The rank that holds up the job, and why: by the collectives, else by its step."""
    if ranks is not None and ranks.straggler:
        caused = max(rank.caused_us for rank in ranks.ranks)
        phase = f"in {ranks.phase}, " if ranks.phase else ""
        return ranks.straggler, (
            f"{ranks.straggler} comes last, and the others wait {time_text(caused)} for it:"
            f" {phase}{ranks.reason}."
        )
    if step_us.high - step_us.low <= _APART * step_us.mid:
        return "", f"All {len(workers):,} ranks take {time_text(step_us.mid)} a step."
    worst = max(workers, key=lambda one: one.step_us)
    usual = [_parts_us(one) for one in workers]
    more = {
        name: (value, median_of([parts[name] for parts in usual]))
        for name, value in _parts_us(worst).items()
    }
    name, (mine, theirs) = max(more.items(), key=lambda pair: pair[1][0] - pair[1][1])
    return worst.worker, (
        f"{worst.worker} is the slowest with {time_text(worst.step_us)} a step, {time_text(step_us.mid)} in the"
        f" median. It spends {time_text(mine)} {name}, {time_text(theirs)} in the median."
    )


def _parts_us(report: TraceReport) -> dict[str, float]:
    """Where a step goes on this rank's device."""
    each = 1e3 * report.steps_counted
    exposed = communication_share(report) * report.step_us
    return {
        "computing": report.device_busy_ns / each - exposed,
        "in collectives": exposed,
        "waiting for launches": report.launch_bound_ns / each,
        "waiting for a host that waits for results": report.sync_wait_ns / each,
        "idle with work queued": report.device_gap_ns / each,
        "idle for an unknown reason": report.unattributed_ns / each,
    }


def in_full(workers: Sequence[TraceReport], job: Job | None) -> list[int]:
    """Return which ranks keep their lanes, gaps and long lists: the slowest, the fastest, one of each group."""
    if job is None or len(workers) <= MOST_IN_FULL:
        return list(range(len(workers)))
    by_step = sorted(range(len(workers)), key=lambda place: workers[place].step_us)
    names = [worker.worker for worker in workers]
    named = [job.slowest, *(group.workers[0] for group in job.groups)]
    wanted = [by_step[-1], by_step[0], *(names.index(name) for name in named if name)]
    return sorted(dict.fromkeys(wanted[:MOST_IN_FULL]))


def shortened(report: TraceReport) -> TraceReport:
    """Return the report without lanes and gaps, with short lists; kernels stay, by which ranks are compared."""
    lists = ("lines", "modules", "annotations")
    work = structs.replace(
        report.work, **{name: getattr(report.work, name)[:_FEW_ROWS] for name in lists}
    )
    names = ("syncs", "operators", "lines", "gap_causes", "idle_kinds", "launches", "steps")
    return structs.replace(
        report,
        **{name: getattr(report, name)[:_FEW_ROWS] for name in names},
        work=work,
        drawn=None,
        longest_gaps=(),
        queue=structs.replace(report.queue, points=()),
    )


_PACKED = 12  # how many times its size a packed file of a trace unpacks to
_EACH_BYTE = 1.5  # bytes of memory for each of a trace's JSON, explaining included
_ANSWERS_WITHIN_S = 10
_WORTH_PROCESSES = 64 << 20  # bytes of JSON, which take as long as two processes take to start
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


def trace_files(folder: TracePath) -> list[TracePath]:
    """The files below the folder that may be traces, by name."""
    if isinstance(folder, RemotePath):
        files = sorted(folder.files(), key=str)
        return without_copies([path for path in files if path.name.endswith(ENDINGS)])
    found = (path for path in folder.rglob("*") if path.name.endswith(ENDINGS))
    return without_copies(sorted(path for path in found if path.is_file()))


def explain_folder(
    folder: TracePath,
    options: TraceOptions,
    tell: Callable[[str], None],
    most_bytes: int | None = None,
    executor: Executor | None = None,
) -> FolderReport:
    """Explain every trace of the folder. Raises UsageError where not one can be explained.

    An `executor` explains them side by side, here or on other machines that reach the same files; the report is the
    same, byte for byte. `most_bytes` is for one trace.
    """
    found_files = trace_files(folder)
    if not found_files:
        raise UsageError(
            f"{folder} has no traces: expected files whose names end in {', '.join(ENDINGS)}."
        )
    files = newest_cycles(found_files)
    left_out = ""
    if earlier := len(found_files) - len(files):
        are = "is" if earlier == 1 else "are"
        left_out = (
            f"{count_text(earlier, 'file')} of earlier profiler cycles {are} left out: the newest of"
            " each rank counts."
        )
    workers: list[TraceReport] = []
    lanes: list[RankLane] = []
    failures: list[str] = []
    is_large = len(files) > MOST_IN_FULL
    explain = partial(_explain_rank, options, most_bytes)
    for found in _explained(files, partial(explain, is_large), tell, executor):
        if isinstance(found, str):
            failures.append(found)
        else:
            workers.append(found[0])
            lanes.append(found[1])
    if not workers:
        raise UsageError(f"None of the {len(files)} files can be explained. {failures[0]}")
    named = {str(path): path for path in files}
    ranks = compare_ranks(
        lanes, workers, lambda one: read_trace(named[one.file], most_bytes=most_bytes)
    )
    job = summarize(workers, ranks)
    if is_large:  # all of a thousand ranks in full would not fit into memory
        places = in_full(workers, job)
        again = [named[workers[place].file] for place in places]
        for place, found in zip(
            places, _explained(again, partial(explain, False), tell, executor), strict=True
        ):
            workers[place] = workers[place] if isinstance(found, str) else found[0]
    return FolderReport(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        folder=str(folder),
        left_out=left_out,
        workers=tuple(workers),
        differences=tuple(_differences(workers)),
        failures=tuple(failures),
        ranks=ranks,
        job=job,
    )


_Rank = tuple[TraceReport, RankLane]


def _explain_rank(
    options: TraceOptions, most_bytes: int | None, is_short: bool, path: TracePath
) -> _Rank | str:
    """One trace explained, and what is compared with other ranks; a sentence if it cannot be."""
    try:
        trace = read_trace(path, most_bytes=most_bytes)
        report = explain_trace(trace, path, replace(options, drawn=not is_short))
        return shortened(report) if is_short else report, compact(rank_lane(trace))
    except UsageError as error:
        return str(error)


def _explained(
    files: Sequence[TracePath],
    explain: Callable[[TracePath], _Rank | str],
    tell: Callable[[str], None],
    executor: Executor | None,
) -> Iterator[_Rank | str]:
    """Every file's result, in order. What an executor loses, because it ended, is explained here.

    What else fails is tried once more, when nothing runs beside it: dask also gives up files that waited beside one
    that its workers died of.
    """
    began, total = time.monotonic(), len(files)
    if executor is None:
        for done, path in enumerate(files):
            tell(f"reading {done + 1:,} of {total:,}{_left(began, done, total)}: {path.name}")
            yield explain(path)
        return
    futures = [executor.submit(explain, path) for path in files]
    for done, _ in enumerate(as_completed(futures), start=1):
        tell(f"read {done:,} of {total:,}{_left(began, done, total)}")
    for path, future in zip(files, futures, strict=True):
        try:
            yield future.result()
        except (BrokenExecutor, CancelledError):
            yield explain(path)
        except Exception:
            try:
                yield executor.submit(explain, path).result()
            except Exception as error:
                yield f"{path} could not be explained: {type(error).__name__}: {error}"


def _left(began: float, done: int, total: int) -> str:
    """How long the rest will take, if it goes on like this; nothing where that is not known or next to nothing."""
    left_s = int((time.monotonic() - began) / done * (total - done)) if done else 0
    return f", {left_s // 60}:{left_s % 60:02} left" if left_s else ""


@contextmanager
def process_pool(folder: TracePath, most_bytes: int | None) -> Iterator[Executor | None]:
    """Processes for `explain_folder`, one for each core; None if one process is as quick.

    All of them together stay below `most_bytes`, as far as the sizes of the files tell. Processes start anew, so
    the calling program must not do anything when it is imported.
    """
    sizes = [
        (path.size_bytes if isinstance(path, RemotePath) else path.stat().st_size)
        * (1 if path.name.endswith((".json", ".sqlite")) else _PACKED)
        for path in newest_cycles(trace_files(folder))
    ]
    count = min(_cores(), len(sizes))
    if most_bytes is not None and sizes:
        count = min(count, int(most_bytes / (_EACH_BYTE * max(sizes) or 1)))
    if count < 2 or sum(sizes) < _WORTH_PROCESSES:
        yield None
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a dask cluster for `explain_folder`, such as "dask://host:8786".

    dask gives the file of a worker that dies to another one. Raises UsageError where dask is missing or nobody
    answers.
    """
    scheme, _, host = address.partition("://")
    if scheme != "dask" or not host:
        raise UsageError(f"expected an executor such as dask://host:8786, and got {address!r}")
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            f"{address} needs dask.distributed: pip install 'graphdoctor[cluster]' ({error})."
        ) from error
    try:
        client = Client(f"tcp://{host}", timeout=_ANSWERS_WITHIN_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"No dask scheduler answers at {host} ({error}).") from error
    with client:
        yield client.get_executor(pure=False)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _differences(workers: Sequence[TraceReport]) -> Iterator[WorkerDifference]:
    names = Counter(worker.worker for worker in workers)
    for name, value, least in _FIGURES:
        ordered = sorted(workers, key=value)
        low, high = ordered[0], ordered[-1]
        apart = value(high) - value(low)
        if apart > max(least, 0.0 if least else _RELATIVE * abs(value(high))):
            # With its file where several have this name.
            one, other = (
                each.worker
                if names[each.worker] == 1
                else f"{each.worker} ({Path(each.file).name})"
                for each in (low, high)
            )
            yield WorkerDifference(name, value(low), one, value(high), other)
