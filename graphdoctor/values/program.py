"""What running an unmodified program gives: its steps, each with its report; plain data, a published JSON schema."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.report import Location, Machine, Mode, Report

PROGRAM_SCHEMA_VERSION = 1

Ending = Literal["finished", "ended by graphdoctor", "raised", "interrupted"]


class HostWait(Struct, frozen=True):
    """A line between the steps on which the host waits for the device, and how often a step does it."""

    location: Location | None
    operation: str
    count: float


class ProgramStep(Struct, frozen=True):
    """A kind of step that the program repeats.

    `begun` counts the steps that were seen, `wall_s` is the host's time in them, and `share` that
    of the program's own time, without graphdoctor's. `passes` are the passes through its lines that
    make one step, more than one where gradients are accumulated. Without a `report`, `reason` is a
    sentence that says why there is none.
    """

    name: str
    location: Location
    last_line: int
    mode: Mode
    begun: int
    wall_s: float
    share: float
    passes: int = 1
    report: Report | None = None
    reason: str = ""
    between: tuple[HostWait, ...] = ()


class ProgramReport(Struct, frozen=True):
    """A program's steps, those first that took most of its time.

    `exit_code` is the program's own. `wall_s` is its time from the first call of a model or an
    optimizer on, without graphdoctor's diagnoses, which took `diagnosis_s`; `loading_s` of it went
    into DataLoaders' next batches. On the emulated device all are times of the CPU that stood in
    for the GPU.
    """

    schema_version: int
    tool_version: str
    command: tuple[str, ...]
    machine: Machine | None
    ending: Ending
    exit_code: int
    wall_s: float
    diagnosis_s: float
    steps: tuple[ProgramStep, ...]
    loading_s: float = 0.0
    notes: tuple[str, ...] = ()
