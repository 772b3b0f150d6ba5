"""What a step takes and would take as graphs, predicted and measured, and which strategy to use; plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.captures import Verification
from graphdoctor.values.figures import Range, bytes_text
from graphdoctor.values.locations import Location


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
    of the prediction hangs on it. `whole_speedup` is predicted for the whole step as one graph, whatever
    keeps it from being one; None where only a trace is known.
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
    whole_speedup: Range | None = None


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


def memory_text(memory: GraphMemory) -> str:
    """Whose memory it is that a graph holds, and what its pool really took where one was made."""
    measured = memory.measured_bytes
    truth = "" if measured is None else f" ({bytes_text(measured)} measured)"
    workspace = bytes_text(memory.workspace_bytes)
    return (
        f"inputs {bytes_text(memory.inputs_bytes)}; a pool of {bytes_text(memory.pool_bytes)}{truth}, for outputs"
        f" {bytes_text(memory.outputs_bytes)} and intermediate values {bytes_text(memory.intermediates_bytes)}"
        " at the peak, which the allocator reserves in blocks of 2 and 20 MB"
        + (f"; cuBLAS's workspace {workspace}" if memory.workspace_bytes else "")
    )


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

    Of several `ranks`, which run in step, each block is as long as on the slowest. `graph_interval_us`
    holds the median of the captured step's own times, as `speedup_low` and `speedup_high` that of the pairs.
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
    graph_interval_us: tuple[float, float] | None = None


StrategyStatus = Literal[
    "verified", "wrong", "not-verified", "refused", "failed", "timed-out", "unfit", "planned"
]


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


class NextFix(Struct, frozen=True):
    """The finding to fix next and the predicted speedup after its fix.

    `captured_share` is the share of the step's launches in graphs after the fix; 1.0 for the whole
    step as one graph. `others` are the rules that have to be fixed on the same line.
    """

    rule: str
    location: Location | None
    speedup: Range
    captured_share: float
    others: tuple[str, ...] = ()


class Recommendation(Struct, frozen=True):
    """Which strategy to use, in one sentence; `code` to paste, `then` what would bring more."""

    strategy: str
    sentence: str
    code: str = ""
    then: str = ""
    next_fix: NextFix | None = None
