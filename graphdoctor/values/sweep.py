"""The values that a sweep over batch sizes gives; plain data, no torch, a published JSON schema."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.report import Machine, TargetInfo, Verdict
from graphdoctor.values.speed import Measurement

SWEEP_SCHEMA_VERSION = 1
SMALLEST_GAIN = 1.05  # below, a graph is not worth its memory and its rules

RowStatus = Literal["measured", "predicted", "no-graph", "failed", "out-of-memory", "not-run"]
Scope = Literal["whole step", "regions", ""]
EndKind = Literal["ends", "never-there", "does-not-end", "cannot-tell", "no-graph", "unknown"]


class SweptInput(Struct, frozen=True):
    """A tensor among the inputs: its shape as described, and what happens to its first dimension."""

    path: str  # "inputs[0]", "inputs.mask"
    shape: tuple[int, ...]
    changes: bool


class SweepRow(Struct, frozen=True):
    """One batch size: the step as it is and as a graph, or the reason why there are no figures.

    `status` "measured": the speed-up is wall-clock time of a verified graph of the whole step on a
    GPU, and the range is its interval. "predicted": computed, within bounds. "no-graph": nothing
    worth capturing remains, so that there is no speed-up; the eager figures stand. `scope` is what
    would be a graph. Samples are counted as the batch size over the time of one step.
    """

    batch: int
    status: RowStatus
    reason: str = ""
    verdict: Verdict | None = None
    scope: Scope = ""
    eager_us: Range | None = None
    graph_us: Range | None = None
    speedup: Range | None = None
    launch_bound_share: Range | None = None
    device_busy_share: Range | None = None  # of the eager step
    eager_samples_per_s: Range | None = None
    graph_samples_per_s: Range | None = None
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()


class Capturing(Struct, frozen=True):
    """Graphs of these sizes, smallest first, with how many calls of a log each would serve.

    `mean_us` is the time of a call, `padding` the share of all rows that are computed for nothing.
    `eager_calls` fit into none.
    """

    name: str
    sizes: tuple[int, ...]
    calls: tuple[int, ...]
    mean_us: float
    padding: float
    eager_calls: int = 0


class LengthPlan(Struct, frozen=True):
    """Which sizes to capture for a log of sizes, and what that brings a call, in microseconds.

    `eager_us` is without graphs, `exact_us` with one for each size there is. `beside` are usual
    choices, each followed by the best one with as many graphs. `capture_us` is what it takes to warm
    up and capture those that are `chosen`. Where not `is_measured`, times are predictions.
    """

    calls: int
    shortest: int
    longest: int
    eager_us: float
    exact_us: float
    chosen: Capturing
    beside: tuple[Capturing, ...]
    capture_us: float
    is_measured: bool


class GainEnd(Struct, frozen=True):
    """Where the gain ends: from `batch` on, the speed-up's upper bound stays below `SMALLEST_GAIN`."""

    kind: EndKind
    sentence: str
    batch: int | None = None


class Sweep(Struct, frozen=True):
    """A step at several batch sizes, smallest first.

    `described_batch` is the batch size of the target's own inputs, None where it is not known.
    `sized_by` names the user's functions that were called with each batch size; where it is "",
    `inputs` says which tensors were changed.
    """

    schema_version: int
    tool_version: str
    target: TargetInfo
    machine: Machine
    gpu: str  # measured on, or predicted for
    rows: tuple[SweepRow, ...]
    end: GainEnd
    described_batch: int | None = None
    sized_by: str = ""
    inputs: tuple[SweptInput, ...] = ()
    notes: tuple[str, ...] = ()
    host: str = ""  # what feeds the GPU that is predicted for, in words
    lengths: LengthPlan | None = None
