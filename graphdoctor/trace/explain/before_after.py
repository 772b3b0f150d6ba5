"""Compare two explained traces of the same program: what became faster and slower, new and gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from graphdoctor import __version__
from graphdoctor.trace.explain.trace_report import MOST_ROWS
from graphdoctor.values.figures import Range
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    WORK_WORDS,
    ChangeTerm,
    ChangeWhat,
    TraceChange,
    TraceComparison,
    TraceReport,
)

EVERY_ROW = 100_000
_MOSTLY, _BUSY = 0.5, 0.9
_RELATIVE = 0.03  # two runs of the same program differ by as much
_WORTH = 0.002  # of a step
_ROUNDING_US = 0.001  # times are in whole ns


def compare_traces(before: TraceReport, after: TraceReport) -> TraceComparison:
    """Both with all their rows (`TraceOptions.rows`), of which the result keeps the usual number."""
    step_us = (before.step_us, after.step_us)
    least = _WORTH * max(step_us)
    changes = [
        change
        for what in _TABLES
        for change in _changes(what, before, after)
        if abs(change.after_us - change.before_us) >= least
    ]
    steps = (_step_us(before), _step_us(after))
    clean = None not in steps
    first, second = (
        step if clean and step is not None else Range.exact(report.step_us)
        for step, report in zip(steps, (before, after), strict=True)
    )
    changes.sort(key=lambda change: -abs(change.after_us - change.before_us))
    return TraceComparison(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        before=_usual_rows(before),
        after=_usual_rows(after),
        sentence=_sentence((before, first), (after, second), changes, clean),
        changes=tuple(changes),
        kernels_new=tuple(sorted(_kernels(after) - _kernels(before))),
        kernels_gone=tuple(sorted(_kernels(before) - _kernels(after))),
        terms=tuple(_terms((before, first.mid), (after, second.mid))),
        without_profiler=clean,
        ratio=_ratio(first, second),
    )


def _lines(report: TraceReport) -> Iterator[tuple[str, float]]:
    """By file and function: a line moves when the file changes."""
    for cost in report.lines:
        place = cost.location
        yield (f"{place.file} ({place.function})" if place else cost.name), cost.host_us


def _causes(report: TraceReport) -> Iterator[tuple[str, float]]:
    for cause in report.gap_causes:
        place = cause.location
        where = f" in {place.file} ({place.function})" if place else ""
        name = "" if cause.kind != "ordinary" and not cause.name else f": {cause.name}"
        yield f"{WORK_WORDS[cause.kind]}{name if not place else ''}{where}", cause.idle_us


_Rows = Iterator[tuple[str, float]]  # names, and the time of a step
_TABLES: dict[ChangeWhat, Callable[[TraceReport], _Rows]] = {
    "kernel": lambda report: ((cost.name, cost.device_us) for cost in report.work.kernels),
    "operator": lambda report: ((cost.name, cost.host_us) for cost in report.operators),
    "function": _lines,
    "idle": _causes,
}


def _changes(what: ChangeWhat, before: TraceReport, after: TraceReport) -> Iterator[TraceChange]:
    total: dict[str, list[float]] = {}
    for side, report in enumerate((before, after)):
        for name, time_us in _TABLES[what](report):
            total.setdefault(name, [0.0, 0.0])[side] += time_us
    for name, (one, other) in total.items():
        if abs(other - one) > _RELATIVE * max(one, other):
            yield TraceChange(what, name, one, other)


def _kernels(report: TraceReport) -> set[str]:
    return {kernel.name for kernel in report.work.kernels}


def _step_us(report: TraceReport) -> Range | None:
    """One step without the profiler, by how much the profiler slows the host; None if nobody knows.

    Where the device is busy nearly all the time, the profiler, which does not slow it, has little to lengthen.
    """
    if report.prediction is not None:
        return report.prediction.eager_us
    if report.device_busy_share < _BUSY:
        return None
    return Range(report.device_busy_ns / 1e3 / report.steps_counted, report.step_us, report.step_us)


_Step = tuple[TraceReport, float]  # with its time in us
_Span = tuple[TraceReport, Range]


def _terms(before: _Step, after: _Step) -> Iterator[ChangeTerm]:
    """Parts that sum to the step: kernels of both traces and of one only, what overlaps, and idle time."""
    parts = [_parts_us(*before, after[0]), _parts_us(*after, before[0])]
    for name in parts[0]:
        one, other = (part[name] for part in parts)
        if max(abs(one), abs(other)) > _ROUNDING_US:
            yield ChangeTerm(name, one, other)


def _parts_us(report: TraceReport, step_us: float, other: TraceReport) -> dict[str, float]:
    each = 1e3 * report.steps_counted
    shared = _kernels(report) & _kernels(other)
    in_both = sum(cost.device_us for cost in report.work.kernels if cost.name in shared)
    in_one = sum(cost.device_us for cost in report.work.kernels if cost.name not in shared)
    busy = report.device_busy_ns / each
    idle = step_us - busy
    queued = min(idle, (report.device_gap_ns + report.unattributed_ns) / each)
    return {
        "kernels in both traces": in_both,
        "kernels in one trace only": in_one,
        "kernels that run at the same time": busy - in_both - in_one,
        "idle with work queued": queued,
        "idle until the host launches": idle - queued,
    }


def _sentence(first: _Span, second: _Span, changes: Sequence[TraceChange], clean: bool) -> str:
    """The step's time without the profiler and with it, and what explains most of its change."""
    (before, one_us), (after, other_us) = first, second
    one, other = one_us.mid, other_us.mid
    basis = " without the profiler" if clean else " as profiled"
    if abs(other - one) <= _RELATIVE * max(one, other):
        return f"A step takes as long as before{basis} ({_ms(one)}, now {_ms(other)})."
    word = "faster" if other < one else "slower"
    busy = (
        after.device_busy_ns / after.steps_counted - before.device_busy_ns / before.steps_counted
    ) / 1e3
    idle = (other - one) - busy
    ratios = _ratio(one_us, other_us)
    values = [ratios.low, ratios.mid, ratios.high]
    if other >= one:
        values = [1 / (value or 1) for value in reversed(values)]
    low, mid, high = (f"{value:.2f}x" for value in values)
    ratio = mid if low == high else f"{mid} ({low} to {high})"
    profiled = max(before.step_us, after.step_us) / (min(before.step_us, after.step_us) or 1)
    also = f" (as profiled {profiled:.2f}x)" if clean else ""
    return (
        f"A step is {ratio} {word} than before{basis}{also}: {_ms(one)}, now {_ms(other)}. The device works"
        f" {_more(busy)} and idles {_more(idle)}.{_graphs(before, after)}{_mostly(changes, busy, idle, other < one)}"
    )


def _ratio(one: Range, other: Range) -> Range:
    """Before over after, each case of the profiler's slowness with the same case of the other."""
    cases = [one.low / (other.low or 1), one.mid / (other.mid or 1), one.high / (other.high or 1)]
    return Range(min(cases), cases[1], max(cases))


def _graphs(before: TraceReport, after: TraceReport) -> str:
    """How many device events graphs replay now and did before, if that changed."""
    one, other = (
        round(report.graphs.kernels) if report.graphs else 0 for report in (before, after)
    )
    total = round(after.device_events / after.steps_counted)
    if one == other:
        return ""
    return f" CUDA graphs now replay {other:,} of {total:,} device events a step, {one:,} before."


def _mostly(changes: Sequence[TraceChange], busy: float, idle: float, faster: bool) -> str:
    """The kernel or the cause of idle time that explains most of a change in the same direction."""
    first = next(
        (
            change
            for change in changes
            if (change.after_us < change.before_us) == faster
            and change.what == ("kernel" if abs(busy) > abs(idle) else "idle")
        ),
        None,
    )
    if first is None:
        return ""
    explained = abs(first.after_us - first.before_us)
    part = "Most" if explained > _MOSTLY * max(abs(busy), abs(idle)) else "The largest part"
    profiled = " as profiled" if first.what == "idle" else ""
    return f" {part} of it{profiled}: {first.name[:80]}, {_ms(first.before_us)} before and {_ms(first.after_us)} now."


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.3g} ms"


def _more(time_us: float) -> str:
    return f"{_ms(abs(time_us))} {'longer' if time_us > 0 else 'less'}"


def _usual_rows(report: TraceReport) -> TraceReport:
    """The report as `graphdoctor trace` keeps it."""
    cut = {
        name: getattr(report, name)[:MOST_ROWS]
        for name in ("syncs", "operators", "lines", "gap_causes")
    }
    lists = ("kernels", "lines", "modules")
    work = structs.replace(
        report.work, **{name: getattr(report.work, name)[:MOST_ROWS] for name in lists}
    )
    return structs.replace(report, **cut, work=work)
