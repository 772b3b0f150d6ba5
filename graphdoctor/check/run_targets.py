"""A project's targets -> an outcome each, from processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from graphdoctor.check.faults import fault_of_process
from graphdoctor.check.gate import Outcome
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.device.processes.forked import run_forked
from graphdoctor.device.processes.fresh import fresh_processes
from graphdoctor.device.processes.process import Ended
from graphdoctor.values.check import Fault
from graphdoctor.values.errors import UsageError
from graphdoctor.values.options import DeviceChoice, ValuesChoice
from graphdoctor.values.report import Mode, Report

Told = Callable[[int, int], None]  # how many targets ended, of how many
_WORK = "graphdoctor.check.one_target"


class Job(msgspec.Struct, frozen=True):
    """One target to analyse. `spec` is relative to `root`, the project's folder."""

    root: str
    spec: str
    inputs: tuple[str, ...]
    mode: Mode | None
    device: DeviceChoice
    gpu: str
    host: str
    iterations: int
    fixed_inputs: bool = False
    values: ValuesChoice = "auto"


class Result(msgspec.Struct, frozen=True):
    """One of the two. A report is its own JSON text, since it may hold what plain JSON cannot."""

    report_json: str | None = None
    fault: Fault | None = None


def run_all(targets: Sequence[TargetSettings], project: Project, told: Told) -> list[Outcome]:
    """Analyse the targets, several at once; whatever one does, the others get their outcome.

    Raises CannotDoItHere where processes cannot be forked.
    """
    missing = {one.name: fault for one in targets if (fault := _missing(one, project)) is not None}
    present = [target for target in targets if target.name not in missing]
    relative = RelativePaths(project.root)
    found = {
        target.name: _result(ended, target.entry, relative)
        for target, ended in zip(present, _run(present, project, told), strict=True)
    }
    return [Outcome(one, missing.get(one.name) or found[one.name]) for one in targets]


def _missing(target: TargetSettings, project: Project) -> Fault | None:
    """A target that is no more is said plainly, and costs no process."""
    if not target.file or (project.root / target.file).is_file():
        return None
    message = (
        f"{target.file} does not exist; {project.source} names it as the entry of {target.name!r}"
    )
    return Fault("usage", UsageError.exit_code, message)


def _run(targets: Sequence[TargetSettings], project: Project, told: Told) -> list[Ended]:
    settings = project.settings
    jobs = [_job(target, project) for target in targets]
    if not jobs:
        return []
    if settings.device == "emulated":
        return run_forked(
            _WORK,
            jobs,
            at_once=settings.jobs or _cores(),
            time_limit_s=settings.time_limit,
            ended=lambda count: told(count, len(jobs)),
        )
    return _run_in_turn(jobs, settings, told)


def _run_in_turn(jobs: Sequence[bytes], settings: Settings, told: Told) -> list[Ended]:
    """Two steps measured on one GPU at once would measure each other."""
    found = []
    with fresh_processes(_WORK) as processes:
        for count, job in enumerate(jobs, start=1):
            is_last = count == len(jobs)
            found.append(processes.run(job, time_limit_s=settings.time_limit, is_last=is_last))
            told(count, len(jobs))
    return found


def _job(target: TargetSettings, project: Project) -> bytes:
    settings = project.settings
    job = Job(
        root=str(project.root),
        spec=target.entry,
        inputs=target.input,
        mode=target.mode,
        device=settings.device,
        gpu=settings.gpu,
        host=settings.host,
        iterations=settings.iterations,
        fixed_inputs=target.inputs == "fixed",
        values=settings.values,
    )
    return msgspec.json.encode(job)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _result(ended: Ended, name: str, relative: RelativePaths) -> Report | Fault:
    """What the process left, without this machine's folders."""
    from graphdoctor.reporters.analysis.json import parse

    if ended.result is None:
        return fault_of_process(ended, relative)
    result = msgspec.json.decode(ended.result, type=Result)
    if result.fault is None:
        assert result.report_json is not None
        return relative.report(parse(result.report_json.encode(), name=name))
    message, details = relative.text(result.fault.message), relative.text(result.fault.details)
    return msgspec.structs.replace(result.fault, message=message, details=details)
