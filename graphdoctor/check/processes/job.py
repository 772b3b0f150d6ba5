"""What the processes of a check tell each other: jobs, and for each a report or a fault."""

from __future__ import annotations

from pathlib import Path

import msgspec

from graphdoctor.values.check import Fault
from graphdoctor.values.options import DeviceChoice
from graphdoctor.values.report import Mode, Report


class Job(msgspec.Struct, frozen=True):
    """One target to analyse. `spec` is relative to the project's folder; files get its `number`."""

    number: int
    spec: str
    inputs: tuple[str, ...]
    mode: Mode | None


class Plan(msgspec.Struct, frozen=True):
    """All jobs, and what holds for each. `folder` is where results and output are written."""

    root: str
    folder: str
    jobs: tuple[Job, ...]
    at_once: int
    time_limit_s: float
    device: DeviceChoice
    gpu: str
    iterations: int

    def result_path(self, job: Job) -> Path:
        return Path(self.folder, f"{job.number}.result.json")

    def output_path(self, job: Job) -> Path:
        """What the model printed, and the last words of a process that crashed."""
        return Path(self.folder, f"{job.number}.output.txt")


class Result(msgspec.Struct, frozen=True):
    """One of the two. A report is its own JSON text, since it may hold what plain JSON cannot."""

    report_json: str | None = None
    fault: Fault | None = None


def write_result(path: Path, result: Result) -> None:
    """Whole or not at all: the process may be killed at any moment."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(result))
    part.replace(path)


def read_report(result: Result, name: str) -> Report | Fault:
    """The value in a result."""
    from graphdoctor.reporters.analysis.json import parse

    if result.report_json is None:
        assert result.fault is not None
        return result.fault
    return parse(result.report_json.encode(), name=name)
