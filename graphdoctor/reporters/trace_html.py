"""The HTML page of a trace, a folder of traces or two compared, with their lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.trace_folder import ranks_text, syncs_text
from graphdoctor.reporters.trace_page import (
    gap_parts,
    kernel_text,
    prediction_rows,
    steps_text,
    time_rows,
)
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import parts
from graphdoctor.reporters.web.drawn_step import SCRIPTS
from graphdoctor.reporters.web.drawn_trace import LEGEND, Drawn, drawn_data
from graphdoctor.values.compared_traces import (
    AnyTrace,
    FolderReport,
    TraceComparison,
)
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.trace import WORK_WORDS, TraceReport


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the device's time, as a share; `css` is its color on the lanes."""

    name: str
    what: str
    ns: int
    share: float
    css: str


_MOST_TRACES = 16
_CSS = ("device", "copy", "graph", "wait", "module", "unknown")  # of `time_rows`


def render(report: AnyTrace, look: Look) -> str:
    """The page, which asks no network for anything. No text of a trace is obeyed."""
    drawn = [*_drawn(report)]
    only = report if isinstance(report, TraceReport) else None
    word, sentence, advice = _head(report)
    return document(
        "trace.html",
        data=drawn_data(drawn) if drawn else None,
        scripts=SCRIPTS,
        report=report,
        only=only,
        folder=report if isinstance(report, FolderReport) else None,
        changes=report if isinstance(report, TraceComparison) else None,
        word=word,
        subject=_subject(report, look.base),
        sentence=sentence,
        advice=advice,
        traces=_traces(report),
        drawn=drawn,
        remark=_how_much(drawn),
        legend=LEGEND,
        parts=parts,
        base=look.base,
        time_parts=_time_parts,
        WORK_WORDS=WORK_WORDS,
        gap_parts=gap_parts,
        kernel_text=kernel_text,
        path_text=path_text,
        place_text=place_text,
        prediction=[*prediction_rows(only.prediction)] if only and only.prediction else [],
        steps_text=steps_text,
        time_text=time_text,
        ranks_text=ranks_text,
        syncs_text=syncs_text,
    )


def _head(report: AnyTrace) -> tuple[str, str, str]:
    """A word, a sentence, and what to do."""
    if isinstance(report, TraceReport):
        return report.verdict.upper().replace("-", " "), report.reason, report.advice
    if isinstance(report, TraceComparison):
        return "BEFORE AND AFTER", report.sentence, ""
    count = count_text(len(report.workers), "rank")
    if report.job is None:
        return count, "Each trace is explained separately.", ""
    return count, report.job.reason, report.job.advice


def _subject(report: AnyTrace, base: str) -> str:
    if isinstance(report, TraceComparison):
        return f"{path_text(report.before.file, base)}, {path_text(report.after.file, base)}"
    path = report.file if isinstance(report, TraceReport) else report.folder
    return path_text(path, base)


def _traces(report: AnyTrace) -> Sequence[tuple[str, TraceReport]]:
    if isinstance(report, TraceReport):
        return (("", report),)
    if isinstance(report, TraceComparison):
        return (("Before", report.before), ("After", report.after))
    # Of a large job a few ranks have lanes, and stand for the others.
    drawn = [worker for worker in report.workers if worker.drawn is not None]
    return tuple((worker.worker, worker) for worker in drawn or report.workers[:_MOST_TRACES])


def _drawn(report: AnyTrace) -> Iterator[Drawn]:
    """Ranks on one clock where their collectives give one; else each from its own beginning."""
    traces = [(name, one) for name, one in _traces(report) if one.drawn is not None]
    begins = [*_begins_ns(report, [one for _, one in traces])]
    for (name, one), begin in zip(traces, begins, strict=True):
        assert one.drawn is not None
        gpu = one.gpu or f"device {one.device}"
        yield Drawn(name or "Trace", one.drawn, begin - min(begins), gpu)


def _begins_ns(report: AnyTrace, traces: Sequence[TraceReport]) -> Iterator[int]:
    ranks = report.ranks.ranks if isinstance(report, FolderReport) and report.ranks else ()
    workers = report.workers if isinstance(report, FolderReport) else ()
    if len(ranks) != len(workers):
        ranks = ()
    ahead_us = {id(one): rank.clock_offset_us for one, rank in zip(workers, ranks, strict=False)}
    for one in traces:
        known = one.drawn is not None and id(one) in ahead_us
        yield one.drawn.begin_ns - round(ahead_us[id(one)] * 1e3) if one.drawn and known else 0


def _how_much(drawn: Sequence[Drawn]) -> str:
    """How much of the trace the lanes show."""
    if not all(one.lanes.is_all for one in drawn):
        return "the beginning, as much as can be drawn"
    steps = max((len(one.lanes.steps) for one in drawn), default=0)
    return count_text(steps, "step")


def _time_parts(report: TraceReport) -> list[Part]:
    span = report.span_ns or 1
    return [
        Part(name, what, ns, ns / span, css)
        for (name, ns, what), css in zip(time_rows(report), _CSS, strict=True)
    ]
