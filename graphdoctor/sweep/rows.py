"""The report of each batch size -> its row; the rows -> the batch size at which the gain ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphdoctor.values.figures import Range
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Measurement
from graphdoctor.values.sweep import SMALLEST_GAIN, GainEnd, RowStatus, Scope, SweepRow


def row_of(batch: int, report: Report, *, notes: tuple[str, ...] = ()) -> SweepRow:
    """The figures of a report that has an estimate; what was measured stands before it."""
    estimate, measured = report.estimate, report.measurement
    assert estimate is not None
    scope = _scope(report)
    eager = estimate.eager_us if measured is None else Range.exact(measured.eager_us)
    graph = estimate.graph_us if measured is None else Range.exact(measured.graph_us)
    speedup = estimate.speedup if measured is None else _interval(measured)
    status: RowStatus = "measured" if measured is not None else "predicted"
    return SweepRow(
        batch=batch,
        status=status if scope else "no-graph",
        reason="" if scope else _why_not(report),
        verdict=report.verdict,
        scope=scope,
        eager_us=eager,
        graph_us=graph if scope else None,
        speedup=speedup if scope else None,
        launch_bound_share=estimate.launch_bound_share,
        device_busy_share=_share(estimate.device_busy_us, estimate.eager_us),
        eager_samples_per_s=_per_second(batch, eager),
        graph_samples_per_s=_per_second(batch, graph) if scope else None,
        measurement=measured,
        notes=(*notes, *report.limits),
    )


def _scope(report: Report) -> Scope:
    """What would be a graph; "" where a verdict of unsafe leaves nothing that would pay."""
    if report.verdict in ("safe", "unknown"):
        return "whole step"
    return "regions" if report.verdict == "partly-safe" else ""


def _why_not(report: Report) -> str:
    """The verdict's reason, and the rules that `graphdoctor analyze` explains it by."""
    blocking = [found for found in report.findings if found.effect != "replay-is-slow"]
    rules = dict.fromkeys(f"{found.rule} {found.name}" for found in blocking)
    return f"{report.reason} ({', '.join(rules)})" if rules else report.reason


def _interval(measured: Measurement) -> Range:
    return Range(measured.speedup_low, measured.speedup, measured.speedup_high)


def _share(part: Range, whole: Range) -> Range | None:
    if not (whole.low and whole.mid and whole.high):
        return None
    return Range(part.low / whole.high, part.mid / whole.mid, min(1.0, part.high / whole.low))


def _per_second(count: int, time_us: Range) -> Range | None:
    if not time_us.low > 0:
        return None
    return Range(*(count * 1e6 / each for each in (time_us.high, time_us.mid, time_us.low)))


def gain_end(rows: Sequence[SweepRow]) -> GainEnd:
    """The first size from which the speed-up's upper bound stays below `SMALLEST_GAIN`.

    A size without a speed-up says nothing, and is named. Where the largest sizes' bounds lie on
    both sides, the answer is unknown.
    """
    judged = [row for row in rows if row.speedup is not None]
    if not judged:
        return _without_speedups(rows)
    bounds = [(row.batch, row.speedup) for row in judged if row.speedup is not None]
    predicted = " (predicted)" if all(row.status == "predicted" for row in judged) else ""
    rest = _not_judged(rows)
    ended = _first_of_tail(bounds, lambda speedup: speedup.high < SMALLEST_GAIN)
    if ended == bounds[0][0]:
        text = f"A graph brings less than {SMALLEST_GAIN:g}x at every size{predicted}.{rest}"
        return GainEnd("never-there", text, ended)
    if ended is not None:
        text = f"From batch {ended} on, a graph brings less than {SMALLEST_GAIN:g}x{predicted}."
        return GainEnd("ends", text + rest, ended)
    largest, speedup = bounds[-1]
    shown = f"{speedup.mid:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.low >= SMALLEST_GAIN:
        text = f"The gain does not end within these sizes: {shown} at batch {largest}{predicted}."
        return GainEnd("does-not-end", text + rest)
    doubtful = _first_of_tail(bounds, lambda speedup: speedup.low < SMALLEST_GAIN)
    text = (
        f"It cannot be said whether the gain ends within these sizes: from batch {doubtful} on, the"
        f" bounds lie on both sides of {SMALLEST_GAIN:g}x, with {shown} at batch {largest}"
        f"{predicted}.{_by_the_middle(bounds)}"
    )
    return GainEnd("cannot-tell", text + rest)


def _by_the_middle(bounds: Sequence[tuple[int, Range]]) -> str:
    """What the likeliest figures say, for a reader who has to choose all the same."""
    ended = _first_of_tail(bounds, lambda speedup: speedup.mid < SMALLEST_GAIN)
    if ended is None:
        return " By the middle of the bounds it does not end."
    return f" By the middle of the bounds it ends at batch {ended}."


def _first_of_tail(
    bounds: Sequence[tuple[int, Range]], holds: Callable[[Range], bool]
) -> int | None:
    """The smallest size from which on all hold; None where not even the largest does."""
    found = None
    for batch, speedup in reversed(bounds):
        if not holds(speedup):
            break
        found = batch
    return found


def _not_judged(rows: Sequence[SweepRow]) -> str:
    silent = [str(row.batch) for row in rows if row.speedup is None]
    return f" Nothing can be said of batch {', '.join(silent)}." if silent else ""


def _without_speedups(rows: Sequence[SweepRow]) -> GainEnd:
    reasons = [row.reason for row in rows if row.status == "no-graph"]
    if not reasons:
        return GainEnd("unknown", "No size could be judged, so nothing is known about the gain.")
    return GainEnd("no-graph", f"No graph can be captured that would pay. {reasons[0]}")
