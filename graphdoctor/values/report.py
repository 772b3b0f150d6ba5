"""A report: everything one analysis found, saved by a published JSON schema; plain data, no torch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.captures import CaptureOutcome, Region
from graphdoctor.values.finding import Assumption, Finding, IdleComment
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.recording import Unreached
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


IN_TRAIN_MODE = (
    "the module is in training mode and was left in it; call .eval() for what runs in service"
)


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


class StageTime(Struct, frozen=True):
    """A stage of the analysis and its wall time."""

    stage: str
    wall_s: float


class RankOutcome(Struct, frozen=True):
    """What one rank of several says of the step."""

    rank: int
    verdict: Verdict
    reason: str


class Report(Struct, frozen=True):
    """Everything one analysis found. `reason` is the verdict in one sentence."""

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
    runs_on_gpu: bool = True  # False: CUDA rejects an operator of the step, in eager too
    unreached: tuple[Unreached, ...] = ()  # of which the budget left out some
    stages: tuple[StageTime, ...] = ()  # in time order; () of reports that have to be reproducible
