"""A report: everything one analysis found, saved by a published JSON schema; plain data, no torch."""

from __future__ import annotations

import importlib
import os
from typing import Any, Literal

from msgspec import Struct

from graphdoctor.values.captures import CaptureOutcome, Region
from graphdoctor.values.finding import Assumption, Finding, IdleComment
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.speed import (
    Estimate,
    GraphMemory,
    Measurement,
    Recommendation,
    StrategyOutcome,
)

SCHEMA_VERSION = 1
Verdict = Literal["safe", "partly-safe", "unsafe", "unknown"]
Mode = Literal["inference", "training"]
DeviceKind = Literal["emulated", "cuda"]


class TargetInfo(Struct, frozen=True):
    """What was analysed, and how it was found."""

    name: str
    file: str
    entry: str  # "graphdoctor_target()", "Model + get_inputs()", ...
    mode: Mode
    notes: tuple[str, ...] = ()


class Machine(Struct, frozen=True):
    """Where the report was made."""

    device: DeviceKind
    device_name: str
    python: str
    torch: str
    platform: str


class RankOutcome(Struct, frozen=True):
    """What one rank of several says of the step."""

    rank: int
    verdict: Verdict
    reason: str


class Report(Struct, frozen=True):
    """Everything one analysis found. `reason` is the verdict in one sentence.

    `print(report)` writes the page that `graphdoctor analyze` shows, without colours; in a notebook
    the report shows itself.
    """

    schema_version: int
    tool_version: str
    target: TargetInfo
    machine: Machine
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]
    regions: tuple[Region, ...]
    safe_modules: tuple[str, ...]
    captures: tuple[CaptureOutcome, ...]
    estimate: Estimate | None
    measurement: Measurement | None
    operators: int  # of one steady-state step
    iterations: int
    limits: tuple[str, ...] = ()  # what could not be seen or checked, and why
    trace_files: tuple[str, ...] = ()
    idle_comments: tuple[IdleComment, ...] = ()
    strategies: tuple[StrategyOutcome, ...] = ()
    recommendation: Recommendation | None = None
    values: Literal["real", "none"] = "real"  # "none": the step ran on shapes only
    assumptions: tuple[Assumption, ...] = ()
    ranks: tuple[
        RankOutcome, ...
    ] = ()  # of a step of several ranks; the rest is said of all of them
    lanes: StepLanes | None = None  # None of a step that did not run
    memory: GraphMemory | None = None  # of a graph of the whole step, where that can be one

    def __str__(self) -> str:
        page: str = _shown_by().page(self)
        return page.rstrip("\n")

    def _repr_html_(self) -> str:
        html: str = _shown_by().html(self)
        return html

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """What IPython shows in a terminal, where there is no HTML."""
        printer.text(str(self))

    def show(self, *, all: bool = False, frames: bool = False) -> None:
        """Write the page to stdout, in colour on a terminal: --all and --frames of the command line."""
        _shown_by().show(self, show_all=all, show_frames=frames)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON that --json writes. Raises UsageError where the file cannot be made."""
        _shown_by().save_report(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """A saved report. Raises UsageError, with the reason, for anything else."""
        report: Report = _shown_by().load_report(path)
        return report


def _shown_by() -> Any:
    """Reporters stand above values and know what a report is; they are found when one is shown."""
    return importlib.import_module("graphdoctor.reporters.for_python")
