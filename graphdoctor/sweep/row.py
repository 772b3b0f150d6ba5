"""The report of one batch size -> its row."""

from __future__ import annotations

from graphdoctor.values.report import Measurement, Range, Report
from graphdoctor.values.sweep import RowStatus, Scope, SweepRow


def row_of(batch: int, report: Report, *, notes: tuple[str, ...] = ()) -> SweepRow:
    """The figures of a report that has an estimate; what was measured stands before it."""
    estimate, measured = report.estimate, report.measurement
    assert estimate is not None
    scope = _scope(report)
    eager = estimate.eager_us if measured is None else _exactly(measured.eager_us)
    graph = estimate.graph_us if measured is None else _exactly(measured.graph_us)
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


def _exactly(value: float) -> Range:
    return Range(value, value, value)


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
