"""Run the targets of a project, each in a separate process, and collect an outcome of each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, as_completed
from functools import partial

import msgspec
from msgspec.structs import replace

from graphdoctor.check.cache.kept import Cache
from graphdoctor.check.cache.reads import Reads
from graphdoctor.check.gate import Outcome
from graphdoctor.check.relative_paths import RelativePaths, is_inside
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.device.processes.forked import run_forked
from graphdoctor.device.processes.process import Ended, fresh_processes
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.values.check import Fault, FaultKind
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report

Told = Callable[[int, int], None]  # how many targets ended, of how many
WORK = "graphdoctor.check.one_target"
# Of a target's time limit: the rest is for who ends them, and says which one hung.
_SHARE_OF_RANKS = 0.8


class Place(msgspec.Struct, frozen=True):
    """Which of the ranks of this machine a process is, and the port of the store where they meet."""

    rank: int
    count: int
    port: int


class Job(msgspec.Struct, frozen=True):
    """One target to analyse by these options. `spec` is relative to `root`, the project's folder.

    `is_followed`: tell what the analysis read. `place` is that of one rank; without it, a job for
    several `ranks` is done by as many processes, within `time_limit_s`.
    """

    root: str
    spec: str
    options: AnalyzeOptions
    is_followed: bool = False
    ranks: int = 1
    time_limit_s: float = 300.0
    place: Place | None = None


class Result(msgspec.Struct, frozen=True):
    """One of the two. A report is its own JSON text, since it may hold what plain JSON cannot."""

    report_json: str | None = None
    fault: Fault | None = None
    reads: Reads | None = None


def run_all(
    targets: Sequence[TargetSettings],
    project: Project,
    told: Told,
    *,
    cache: Cache | None = None,
    executor: Executor | None = None,
) -> list[Outcome]:
    """Analyse the targets, several at once; whatever one does, the others get their outcome.

    What the cache has of unchanged ones is taken from there. An `executor` analyses the others, on machines that
    reach the project by the same path. Raises CannotDoItHere where processes cannot be forked.
    """
    known: dict[str, Outcome] = {}
    for target in targets:
        found: Report | Fault | None = _missing(target, project)
        if found is None and cache is not None:
            found = cache.look_up(target.name, cache_key(target, project))
        if found is not None:
            known[target.name] = Outcome(target, found)
    others = [target for target in targets if target.name not in known]
    relative = RelativePaths(project.root)
    for target, ended in zip(others, _run(others, project, told, cache, executor), strict=True):
        result = _result(ended, target, project, relative, cache)
        known[target.name] = Outcome(target, result, ended.seconds)
    return [known[one.name] for one in targets]


def cache_of(project: Project) -> Cache | None:
    """The project's kept reports; None where a step runs on a GPU, whose times are measured anew."""
    return Cache(project.root) if project.settings.device == "emulated" else None


def cache_key(target: TargetSettings, project: Project) -> bytes:
    """What is asked of a target, wherever the project lies."""
    return msgspec.json.encode(replace(job_of(target, project), root=""))


def _missing(target: TargetSettings, project: Project) -> Fault | None:
    """A target that is no more is said plainly, and costs no process."""
    if not target.file or (project.root / target.file).is_file():
        return None
    message = (
        f"{target.file} does not exist; {project.source} names it as the entry of {target.name!r}"
    )
    return Fault("usage", UsageError.exit_code, message)


def _run(
    targets: Sequence[TargetSettings],
    project: Project,
    told: Told,
    cache: Cache | None,
    executor: Executor | None,
) -> list[Ended]:
    jobs = [
        msgspec.json.encode(replace(job_of(target, project), is_followed=cache is not None))
        for target in targets
    ]
    if executor is None:
        return _run_here(project.settings, jobs, told)
    alone = partial(_run_alone, project.settings)
    futures = [executor.submit(alone, job) for job in jobs]
    for done, _ in enumerate(as_completed(futures), start=1):
        told(done, len(jobs))
    # What the executor lost with its processes is done here.
    return [
        alone(job) if future.cancelled() or future.exception() else future.result()
        for job, future in zip(jobs, futures, strict=True)
    ]


def _run_alone(settings: Settings, job: bytes) -> Ended:
    (ended,) = _run_here(settings, [job], lambda done, total: None)
    return ended


def _run_here(settings: Settings, jobs: Sequence[bytes], told: Told) -> list[Ended]:
    if not jobs:
        return []
    if settings.device == "emulated":
        has_affinity = hasattr(os, "sched_getaffinity")  # macOS and Windows have none
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        return run_forked(
            WORK,
            jobs,
            at_once=settings.jobs or cores,
            time_limit_s=settings.time_limit,
            ended=lambda count: told(count, len(jobs)),
        )
    # In turn: two steps measured on one GPU at once would measure each other.
    found = []
    with fresh_processes(WORK) as processes:
        for count, job in enumerate(jobs, start=1):
            is_last = count == len(jobs)
            found.append(processes.run(job, time_limit_s=settings.time_limit, is_last=is_last))
            told(count, len(jobs))
    return found


def job_of(target: TargetSettings, project: Project) -> Job:
    """What is asked of a target, by its own settings and the project's."""
    settings = project.settings
    return Job(
        root=str(project.root),
        spec=target.entry,
        options=AnalyzeOptions(
            mode=target.mode,
            device=settings.device,
            iterations=settings.iterations,
            inputs=target.input,
            gpu=settings.gpu,
            host=settings.host,
            strategies=(),  # a check is about structure
            fixed_inputs=target.inputs == "fixed",
            values=settings.values,
        ),
        ranks=target.ranks,
        time_limit_s=_SHARE_OF_RANKS * settings.time_limit,
    )


def _result(
    ended: Ended,
    target: TargetSettings,
    project: Project,
    relative: RelativePaths,
    cache: Cache | None,
) -> Report | Fault:
    """What the process left, without this machine's folders; a report is kept for the next check."""
    if ended.result is None:
        return fault_of_process(ended, relative)
    result = msgspec.json.decode(ended.result, type=Result)
    if result.fault is None:
        assert result.report_json is not None
        report = relative.report(parsed(result.report_json.encode(), Report, name=target.entry))
        # A step that ran on shapes for want of memory may have the memory in the next check.
        is_lasting = report.values == "real" or project.settings.values == "none"
        if cache is not None and result.reads is not None and is_lasting:
            cache.keep(target.name, cache_key(target, project), written(report), result.reads)
        return report
    message, details = relative.text(result.fault.message), relative.text(result.fault.details)
    return replace(result.fault, message=message, details=details)


_FRAMES_SHOWN = 5


def fault_of(error: BaseException) -> Fault:
    """Of an analysis that raised."""
    if isinstance(error, UserCodeError):
        return Fault("failed", error.exit_code, str(error), error.frames)
    if isinstance(error, GraphDoctorError):
        kind: FaultKind = "cannot" if isinstance(error, CannotDoItHere) else "usage"
        sentence, _, to_paste = str(error).partition("\n\n")
        return Fault(kind, error.exit_code, sentence, to_paste)
    if isinstance(error, SystemExit):
        message = f"it ended the interpreter with exit code {error.code!r}"
        return Fault("failed", UserCodeError.exit_code, message)
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    details = "".join(traceback.format_exception(error))
    return Fault("usage", GraphDoctorError.exit_code, f"a bug in graphdoctor: {what}", details)


def fault_of_process(ended: Ended, relative: RelativePaths) -> Fault:
    """Of a process that left no result, with where its main thread was in the project's own files.

    What the model printed stays out of it: that may differ from run to run.
    """
    own = [match for match in ended.frames() if is_inside(relative.text(match["file"]))]
    frames = [relative.text(match.group().strip()) for match in own[:_FRAMES_SHOWN]]
    kind: FaultKind = "timed-out" if ended.code is None else "crashed"
    return Fault(kind, UserCodeError.exit_code, ended.reason, "\n".join(reversed(frames)))
