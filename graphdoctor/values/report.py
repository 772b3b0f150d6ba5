"""The values that make up a report, and that stages pass on; plain data, no torch, a published JSON schema."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from graphdoctor.values.lanes import StepLanes

SCHEMA_VERSION = 1

Effect = Literal["capture-fails", "replay-is-wrong", "replay-is-slow"]
Verdict = Literal["safe", "partly-safe", "unsafe", "unknown"]
Mode = Literal["inference", "training"]
DeviceKind = Literal["emulated", "cuda"]
StrategyStatus = Literal[
    "verified", "wrong", "not-verified", "refused", "failed", "timed-out", "unfit", "planned"
]


class Location(Struct, frozen=True, gc=False):
    """A line of Python. `file` is the path Python knows it by; `line` counts from 1."""

    file: str
    line: int
    function: str = ""


class Columns(Struct, frozen=True):
    """An expression within its line: characters from 1, `end` is the first one behind it."""

    start: int
    end: int


class Excerpt(Struct, frozen=True):
    """Source lines around a location, kept so that a saved report can show them anywhere."""

    first_line: int
    lines: tuple[str, ...]


class Range(Struct, frozen=True):
    """A figure that is known only within bounds."""

    low: float
    mid: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value, value)


class Suppression(Struct, frozen=True):
    """Why a finding does not count: a comment at `location` says so, or else the settings do."""

    reason: str
    location: Location | None = None


class IdleComment(Struct, frozen=True):
    """A suppression comment that does nothing. `rule` is what it names, as it is written there."""

    location: Location
    rule: str
    kind: Literal["unused", "unknown-rule", "misplaced", "not-understood"]
    message: str


class Finding(Struct, frozen=True):
    """One reason why the step is not safe, or not worth it, as a CUDA graph.

    `count` is how often one step does it. `stack` leads from the location outwards to the caller.
    `cost_us` is the time one eager step would save without its waits and copies, all else being as
    it is; None where nothing is known of it. `cost_source` says how it is known.
    `certainty` is "confirmed" where the (emulated) machine showed the effect in this run,
    "likely" where the mechanism was seen, "unknown" where it could not be checked.
    What is `suppressed` is still true, and still counts for the verdict.
    `columns` are those of the location's expression; None where Python does not say, or where it
    reaches over several lines.
    """

    rule: str
    name: str
    effect: Effect
    message: str
    why: str
    fix: str
    location: Location | None
    excerpt: Excerpt | None = None
    stack: tuple[Location, ...] = ()
    module: str = ""
    phase: str = "forward"
    operator: str = ""
    count: int = 1
    certainty: Literal["confirmed", "likely", "unknown"] = "likely"
    suppressed: Suppression | None = None
    cost_us: Range | None = None
    cost_source: str = ""
    columns: Columns | None = None

    @property
    def code(self) -> str | None:
        """The location's line, as far as the excerpt has it."""
        if self.location is None or self.excerpt is None:
            return None
        index = self.location.line - self.excerpt.first_line
        return self.excerpt.lines[index] if 0 <= index < len(self.excerpt.lines) else None


class Assumption(Struct, frozen=True):
    """A value that a step on shapes only needed: `what` was assumed, such as "False", at this place."""

    what: str
    operator: str
    location: Location | None = None
    code: str = ""  # the line that needs it


class Need(Struct, frozen=True):
    """An earlier region that must run first, and the rules whose findings stand between the two."""

    region: str
    rules: tuple[str, ...] = ()


class Region(Struct, frozen=True):
    """A run of consecutive operators that can be captured as one CUDA graph.

    `needs` are the regions that must run before it, since it works on what they left, directly or
    through operators that run as they do today, host reads included; what these need in turn is not
    repeated.
    """

    name: str  # "A", "B", ... in execution order
    operators: int
    launches: int
    phases: tuple[str, ...]
    modules: tuple[str, ...]
    first: Location | None
    last: Location | None
    blocked_by: tuple[str, ...]  # rule ids that end it, before and after
    iterations: tuple[int, ...]  # the recorded iterations that ran it
    worthwhile: bool
    reason: str  # why it is, or is not, worth capturing
    saving_us: Range | None = None  # host time that a replay would save, per step
    needs: tuple[Need, ...] = ()


class Difference(Struct, frozen=True):
    """The first tensor that a replay computed differently from eager."""

    tensor: str  # path: "model.weight", "output.logits", "model.weight.grad"
    replay: int  # which replay, counting from 1
    max_abs: float
    max_rel: float
    operator: str = ""
    location: Location | None = None
    detail: str = ""


ON_FRESH_INPUTS = "on fresh inputs"
ON_PATH_OF_CAPTURE = (
    "on the path that it takes while it is captured, which draws other random numbers"
)


class Verification(Struct, frozen=True):
    """Whether replays computed what eager computes, state included.

    `inputs` says on which inputs; `path` on which path of the step eager ran, where that is not its own.
    """

    status: Literal["verified", "wrong", "not-verified"]
    replays: int
    tensors: int  # how many tensors were compared in each replay
    method: str  # "bitwise" or "within eager's own deviation"
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    inputs: str = ON_FRESH_INPUTS
    path: str = ""


class Scope(Struct, frozen=True):
    """What one graph is to hold: the whole step, or the region of this name."""

    region: str = ""

    @classmethod
    def parse(cls, text: str) -> Scope:
        """A scope as reports have it: "whole step" or "region A"."""
        kind, _, region = text.partition(" ")
        scope = cls(region) if kind == "region" else cls()
        if str(scope) != text:
            raise ValueError(f'a scope is "whole step" or "region A", not "{text}"')
        return scope

    def __str__(self) -> str:
        return f"region {self.region}" if self.region else "whole step"


WHOLE_STEP = Scope()


class CaptureOutcome(Struct, frozen=True):
    """One attempt to capture: the whole step, or a region by its name."""

    scope: str  # "whole step" or "region A": a `Scope`, as it is saved
    status: Literal["captured", "refused"]
    reason: str = ""
    location: Location | None = None
    operators: int = 0
    verification: Verification | None = None

    def __post_init__(self) -> None:
        Scope.parse(self.scope)

    @property
    def is_whole_step(self) -> bool:
        return Scope.parse(self.scope) == WHOLE_STEP

    @property
    def region(self) -> str:
        """The name of its region; "" for the whole step."""
        return Scope.parse(self.scope).region

    @property
    def is_verified(self) -> bool:
        return self.verification is not None and self.verification.status == "verified"


def outcome_of_whole_step(captures: Iterable[CaptureOutcome]) -> CaptureOutcome | None:
    """What came of capturing the whole step; None where that was not tried."""
    return next((capture for capture in captures if capture.is_whole_step), None)


class Term(Struct, frozen=True):
    """One addend of an estimate, with where its figure comes from."""

    name: str
    value: str
    source: str


class OtherHost(Struct, frozen=True):
    """The same prediction, were everything on the host to take `times` as long."""

    times: float
    eager_us: float
    graph_us: float
    speedup: float


class Estimate(Struct, frozen=True):
    """Eager time, graph time and launch-bound share of one step. Never called measured unless it was.

    `host` feeds the GPU, in words; "" where it was the machine at hand. `on_other_hosts` says how much
    of the prediction hangs on it.
    """

    gpu: str
    basis: Literal["predicted", "measured"]
    launches: int
    host_us: Range
    device_busy_us: Range
    eager_us: Range
    graph_us: Range
    launch_bound_share: Range
    speedup: Range
    terms: tuple[Term, ...] = ()
    notes: tuple[str, ...] = ()
    host: str = ""
    on_other_hosts: tuple[OtherHost, ...] = ()


class GraphMemory(Struct, frozen=True):
    """What a graph of the whole step holds for as long as it lives, predicted; `measured_bytes` is its pool's truth.

    `inputs_bytes` are the copies that it reads. The pool has the outputs and, at the peak, the
    intermediate values; `pool_bytes` is what the allocator reserves for both. `workspace_bytes` is
    cuBLAS's, for the stream that the capture takes.
    """

    inputs_bytes: int
    outputs_bytes: int
    intermediates_bytes: int
    pool_bytes: int
    workspace_bytes: int
    measured_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Inputs, pool and workspace; with the pool's truth where there is one."""
        pool = self.pool_bytes if self.measured_bytes is None else self.measured_bytes
        return self.inputs_bytes + pool + self.workspace_bytes


class Skew(Struct, frozen=True):
    """How much later a collective begins on the last rank than on the first, over so many of them."""

    collectives: int
    median_us: float
    p95_us: float


class LaunchSkew(Struct, frozen=True):
    """Of both under the profiler, which slows the host of eager down."""

    eager: Skew
    graph: Skew


class Measurement(Struct, frozen=True):
    """Wall-clock comparison of eager and captured step on a real GPU, from interleaved paired blocks.

    Of several `ranks`, which run in step, each block is as long as on the slowest.
    """

    eager_us: float
    graph_us: float
    speedup: float
    speedup_low: float
    speedup_high: float
    confidence: float
    blocks: int
    calls_per_block: int
    word: Literal["faster", "slower", "no change"]
    gpu: str
    clock_note: str = ""
    ranks: int = 1
    skew: LaunchSkew | None = None


class StrategyOutcome(Struct, frozen=True):
    """One way to run the step faster, and what came of it: a row of the table.

    `status` "planned": it was worked out and not run, which takes a GPU. `captured_share` is the
    part of a step's launches that graphs take over: predicted of the eager step's, and on a GPU seen
    of all that ran there. `prepare_s` is warm-up, compilation and capture together,
    `extra_bytes` what the device's memory holds more than for eager, `peak_bytes` the most that was
    in use while preparing and calling. After `break_even_calls` steps the preparation has paid.
    Shares of the device's busy time are of the step's own wall time. What was not measured is None.
    """

    strategy: str
    title: str
    is_ours: bool
    status: StrategyStatus
    reason: str = ""
    location: Location | None = None
    verification: Verification | None = None
    predicted: Range | None = None  # speed-up over eager
    measurement: Measurement | None = None
    captured_share: float | None = None
    launches_eager: float | None = None
    launches: float | None = None
    busy_share_eager: float | None = None
    busy_share: float | None = None
    prepare_s: float | None = None
    extra_bytes: int | None = None
    peak_bytes: int | None = None
    break_even_calls: int | None = None
    deviation: float | None = None  # largest, of an output, relative to its magnitude
    plan: str = ""  # what would be captured, line by line, where a strategy can say it beforehand
    code: str = ""


NO_STRATEGY = "none"  # what is recommended where eager is to be kept


class Recommendation(Struct, frozen=True):
    """Which strategy to use, in one sentence; `code` to paste, `then` what would bring more."""

    strategy: str
    sentence: str
    code: str = ""
    then: str = ""


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
