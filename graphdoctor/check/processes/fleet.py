"""A project's targets -> an outcome each: starts the server, waits for it, reads the results."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from graphdoctor.check.gate import Outcome
from graphdoctor.check.processes.job import Job, Plan, Result, read_report
from graphdoctor.check.relative_paths import Locality, is_inside
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.target.child_process import dumped_frames, search_path
from graphdoctor.values.check import Fault
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.escape import visible
from graphdoctor.values.report import Report

Ended = Callable[[int, int], None]  # how many targets ended, of how many
_FRAMES_SHOWN = 5
_STOP_S = 5.0


def run_all(targets: Sequence[TargetSettings], project: Project, ended: Ended) -> list[Outcome]:
    """Analyse the targets, several at once; whatever one does, the others get their outcome.

    Raises CannotDoItHere where processes cannot be forked.
    """
    if not hasattr(os, "fork"):
        raise CannotDoItHere("this system cannot fork processes, which a check needs; use WSL")
    missing = {one.name: fault for one in targets if (fault := _missing(one, project)) is not None}
    present = [target for target in targets if target.name not in missing]
    results = iter(_run(present, project, ended) if present else [])
    return [
        Outcome(one, missing[one.name] if one.name in missing else next(results)) for one in targets
    ]


def _missing(target: TargetSettings, project: Project) -> Fault | None:
    """A target that is no more is said plainly, and costs no process."""
    if not target.file or (project.root / target.file).is_file():
        return None
    message = (
        f"{target.file} does not exist; {project.source} names it as the entry of {target.name!r}"
    )
    return Fault("usage", UsageError.exit_code, message)


def _run(
    targets: Sequence[TargetSettings], project: Project, ended: Ended
) -> Iterator[Report | Fault]:
    with tempfile.TemporaryDirectory(prefix="graphdoctor-") as folder:
        plan = _plan(targets, project, folder)
        path = Path(folder, "plan.json")
        path.write_bytes(msgspec.json.encode(plan))
        with _server(path, folder) as server:
            assert server.stdout is not None
            for count, _ in enumerate(server.stdout, start=1):
                ended(count, len(targets))
        locality = Locality(project.root)
        yield from [_result(plan, job, locality) for job in plan.jobs]


def _plan(targets: Sequence[TargetSettings], project: Project, folder: str) -> Plan:
    settings = project.settings
    # Two steps measured on one GPU at once would measure each other.
    at_once = 1 if settings.device != "emulated" else settings.jobs or _cores()
    return Plan(
        root=str(project.root),
        folder=folder,
        jobs=tuple(
            Job(number, target.entry, target.inputs, target.mode)
            for number, target in enumerate(targets)
        ),
        at_once=at_once,
        time_limit_s=settings.time_limit,
        device=settings.device,
        gpu=settings.gpu,
        iterations=settings.iterations,
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _server(plan: Path, folder: str) -> Iterator[subprocess.Popen[str]]:
    """The server, with one order of sets for all, and never a `torch.py` of the folder it is in."""
    errors = Path(folder, "server.txt")
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "graphdoctor.check.processes.server", str(plan)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": search_path()},
        ) as server,
    ):
        try:
            yield server
            server.wait()
        finally:
            if server.poll() is None:
                server.terminate()
                server.wait(_STOP_S)
    if server.returncode != 0:
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = visible(said[-1]) if said else f"exit code {server.returncode}"
        raise GraphDoctorError(f"the process that runs the targets failed: {reason}")


def _result(plan: Plan, job: Job, locality: Locality) -> Report | Fault:
    try:
        result = msgspec.json.decode(plan.result_path(job).read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return Fault("crashed", UserCodeError.exit_code, "its process left no result")
    value = read_report(result, job.spec)
    if isinstance(value, Report):
        return locality.report(value)
    details = value.details
    if value.kind in ("crashed", "timed-out"):
        details = _last_frames(plan.output_path(job), locality)
    return msgspec.structs.replace(
        value, message=locality.text(value.message), details=locality.text(details)
    )


def _last_frames(output: Path, locality: Locality) -> str:
    """Where the main thread was, in the project's own files, if the process could still say it."""
    try:
        said = locality.text(output.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    own = [match for match in dumped_frames(said) if is_inside(match["file"])][:_FRAMES_SHOWN]
    return "\n".join(match.group().strip() for match in reversed(own))
