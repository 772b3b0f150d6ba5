"""Two explained traces of the same program -> what became faster and slower, new and gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from graphdoctor import __version__
from graphdoctor.trace.explain.trace_report import MOST_ROWS
from graphdoctor.values.compared_traces import ChangeWhat, TraceChange, TraceComparison
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, WORK_WORDS, TraceReport

EVERY_ROW = 100_000
_MOSTLY = 0.5
_RELATIVE = 0.03  # two runs of the same program differ by as much
_WORTH = 0.002  # of a step


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
    changes.sort(key=lambda change: -abs(change.after_us - change.before_us))
    return TraceComparison(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        before=_usual_rows(before),
        after=_usual_rows(after),
        sentence=_sentence(before, after, changes),
        changes=tuple(changes),
        kernels_new=tuple(sorted(_kernels(after) - _kernels(before))),
        kernels_gone=tuple(sorted(_kernels(before) - _kernels(after))),
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
    rows = _TABLES[what]
    first, second = _summed(rows(before)), _summed(rows(after))
    for name in {**first, **second}:
        one, other = first.get(name, 0.0), second.get(name, 0.0)
        if abs(other - one) > _RELATIVE * max(one, other):
            yield TraceChange(what, name, one, other)


def _summed(rows: Iterator[tuple[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, time in rows:
        total[name] = total.get(name, 0.0) + time
    return total


def _kernels(report: TraceReport) -> set[str]:
    return {kernel.name for kernel in report.work.kernels}


def _sentence(before: TraceReport, after: TraceReport, changes: Sequence[TraceChange]) -> str:
    """The step's time, and what explains most of its change."""
    one, other = before.step_us, after.step_us
    if abs(other - one) <= _RELATIVE * max(one, other):
        return f"A step takes as long as before ({_ms(one)}, now {_ms(other)})."
    word = "faster" if other < one else "slower"
    busy = (
        after.device_busy_ns / after.steps_counted - before.device_busy_ns / before.steps_counted
    ) / 1e3
    idle = (other - one) - busy
    parts = f"the device works {_more(busy)} and idles {_more(idle)}"
    same_way = [
        change
        for change in changes
        if (change.after_us < change.before_us) == (other < one)
        and (change.what == "kernel") == (abs(busy) > abs(idle))
        and change.what in ("kernel", "idle")
    ]
    mostly = ""
    if same_way:
        first = same_way[0]
        explained = abs(first.after_us - first.before_us)
        part = "Most" if explained > _MOSTLY * max(abs(busy), abs(idle)) else "The largest part"
        mostly = f" {part} of it: {first.name[:80]}, {_ms(first.before_us)} before and {_ms(first.after_us)} now."
    ratio = one / other if other < one else other / (one or 1)
    return f"A step is {ratio:.2f}x {word} than before ({_ms(one)}, now {_ms(other)}): {parts}.{mostly}"


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
