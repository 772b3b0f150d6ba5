"""What running an unmodified program gives: its steps, each with its report; plain data, a published JSON schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Finding, caller_of
from graphdoctor.values.locations import Lines, Location
from graphdoctor.values.report import Machine, Mode, Report

PROGRAM_SCHEMA_VERSION = 1

ON_CPU = "The step runs on the CPU, where a CUDA graph does nothing."  # a step's `reason`

Ending = Literal["finished", "ended by graphdoctor", "raised", "interrupted"]


class NotReached(Struct, frozen=True):
    """What a step has instead of a report if the time for its diagnosis was too short. `reason` is a sentence."""

    reason: str


class HostWait(Struct, frozen=True):
    """A line between the steps on which the host waits for the device, and how often a step does it."""

    location: Location | None
    operation: str
    count: float


class CalledModule(Struct, frozen=True):
    """A module that a step calls from outside any other.

    `expression` is what the program calls it, such as "model" or "self.net", and `line` the last one
    of the statement in `file` that puts it there; without them, `reason` says why it cannot be put in
    another's place, as a clause. `trains`: it is called with gradients.
    """

    kind: str
    expression: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    trains: bool = False
    reason: str = ""


class LineOnGpu(Struct, frozen=True):
    """A line of a program that stays on the CPU, as it becomes on a GPU; `is_added`: a new line after it."""

    file: str
    line: int
    code: str
    is_added: bool = False


# What handles a finding: the captured step or what moves out of it, other code in its place, or distributions that
# no longer check their arguments.
Handling = Literal["capture", "replaced code", "no argument checks"]


class Handled(Struct, frozen=True):
    """A finding that the change of a step handles, by its rule and its place, so that it needs no edit."""

    rule: str
    location: Location | None
    caller: Location | None  # the program's own line, if the location is in a library
    by: Handling

    @staticmethod
    def of(finding: Finding, by: Handling) -> Handled:
        return Handled(finding.rule, finding.location, caller_of(finding), by)


def modules_to_move(steps: Iterable[tuple[Mode, Iterable[CalledModule]]]) -> list[CalledModule]:
    """The modules of some steps to move: those of training steps, which are whole models, if there are any.

    Other steps also call parts of these models by themselves, which move with them.
    """
    by_mode = [(mode, [*modules]) for mode, modules in steps]
    trained = [modules for mode, modules in by_mode if mode == "training"]
    return [one for modules in trained or [modules for _, modules in by_mode] for one in modules]


class ProgramStep(Struct, frozen=True):
    """A kind of step that the program repeats.

    `begun` counts the steps that were seen, `wall_s` is the host's time in them, and `share` that
    of the program's own time, without graphdoctor's. `passes` are the passes through its lines that
    make one step, more than one where gradients are accumulated. Without a `report`, `reason` is a
    sentence that says why there is none: the step cannot be diagnosed, or was not `is_reached`.
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
    is_reached: bool = True  # else the time or the steps for a diagnosis were too few
    between: tuple[HostWait, ...] = ()
    recorded: int = (
        0  # how many of them were kept and watched, each `slowdown` times as long as others
    )
    slowdown: float | None = None
    modules: tuple[CalledModule, ...] = ()
    caller: Location | None = None  # the program's own line that led to the step
    change: str = ""  # what the program's patch does for this step, as a clause
    no_change: str = ""  # or why it does nothing
    cured: tuple[str, ...] = ()  # rules of which the change handles every finding
    handled: tuple[Handled, ...] = ()  # the findings that it handles
    captured: tuple[Lines, ...] = ()  # what the change captures besides what was diagnosed
    host_values: tuple[
        str, ...
    ] = ()  # variables: NumPy arrays, and floats that change between steps

    @property
    def stays_on_cpu(self) -> bool:
        """Whether its reason says that a graph does nothing for it, alone or with another reason."""
        return ON_CPU in self.reason

    def handling_of(self, finding: Finding) -> Handling | None:
        """What of the step's change handles a finding; None for one that needs an edit."""
        same = (each for each in self.handled if each == Handled.of(finding, each.by))
        return next((each.by for each in same), None)


PatchStatus = Literal["not tried", "same results", "left out"]
Exactness = Literal["bitwise", "rounding", "changes-results"]


class Patch(Struct, frozen=True):
    """Changes of the program's own files, as one unified diff to apply in `folder` with `patch -p1`.

    "same results": the program ran as it is and changed, and what could be compared was alike, as
    `tried` says. "left out": it was not, or could not be compared, or was slower, so there is no diff.
    `speedup` is of the whole time from one optimizer step to the next where `is_measured`, and else of the
    step that gains most, as it is predicted.
    """

    status: PatchStatus
    diff: str = ""
    folder: str = ""
    tried: str = ""
    speedup: Range | None = None
    is_measured: bool = False
    shapes: str = ""  # what a captured step does with inputs of another shape, as sentences


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
    patch: Patch | None = None
    is_on_cpu: bool = False  # it stayed there, and its steps were diagnosed as if on a GPU
    on_gpu: tuple[LineOnGpu, ...] = ()  # of a program that stays on the CPU

    @property
    def loading_share(self) -> float:
        """Of the program's time, that in which its DataLoaders' next batches came."""
        return self.loading_s / self.wall_s if self.wall_s else 0.0
