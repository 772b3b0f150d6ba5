"""The HTML page of a trace, a folder of traces or two compared, with their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.trace_page import (
    gap_parts,
    kernel_text,
    prediction_rows,
    steps_text,
    time_rows,
)
from graphdoctor.reporters.traces_page import ranks_text, syncs_text
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import parts
from graphdoctor.reporters.web.drawn_step import SCRIPTS, Row
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.lanes import LaneEvent, LaneGap, TraceLanes
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.trace import (
    WORK_WORDS,
    AnyTrace,
    FolderReport,
    TraceComparison,
    TraceReport,
)


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


TICKS_PER_US = 1_000  # ns
HOST, WAIT, DEVICE, SYNC_WAIT, GAP_HOST, LAUNCH_PATH, DEVICE_GAP, UNKNOWN, STEP = range(9)
KINDS = (
    {"name": "work on the host", "class": "host"},
    {"name": "waiting for the device", "class": "wait"},
    {"name": "work on the device", "class": "device"},
    {"name": "idle: the CPU waited for the GPU", "class": "wait"},
    {"name": "idle: the CPU had not reached the launch", "class": "copy"},
    {"name": "idle: the launch was on its way", "class": "graph"},
    {"name": "idle: the work was queued already", "class": "module"},
    {"name": "idle: no launch in the trace", "class": "unknown"},
    {"name": "a step", "class": "module"},
)
LEGEND = tuple(kind for number, kind in enumerate(KINDS) if number not in (SYNC_WAIT, STEP))
_IDLE_KINDS = (SYNC_WAIT, GAP_HOST, LAUNCH_PATH, DEVICE_GAP, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The lanes of one rank, or of one of two traces; they begin `shift_ns` after the page's 0."""

    title: str
    lanes: TraceLanes
    shift_ns: int = 0
    remark: str = ""


@dataclass(slots=True)
class _Items:
    """What bars stand for: numbers of texts, which are there once."""

    texts: dict[str, int] = field(default_factory=dict)
    what: list[int] = field(default_factory=list)
    ended_by: list[int] = field(default_factory=list)
    host_was_in: list[int] = field(default_factory=list)

    def add(self, what: str, ended_by: str = "", host_was_in: str = "") -> int:
        for column, text in (
            (self.what, what), (self.ended_by, ended_by), (self.host_was_in, host_was_in)
        ):  # fmt: skip
            column.append(self.texts.setdefault(text, len(self.texts)) if text else -1)
        return len(self.what) - 1


def drawn_data(traces: Sequence[Drawn]) -> dict[str, Any]:
    """Groups of rows, one group for each of these, as plain values."""
    items = _Items()
    groups = [
        {"title": one.title, "remark": one.remark, "rows": _rows(one, items)} for one in traces
    ]
    texts = list(items.texts)
    columns = (
        ("What", items.what), ("Before", items.ended_by), ("Host in", items.host_was_in)
    )  # fmt: skip
    return {
        "ticks": TICKS_PER_US,
        "end": max((one.shift_ns + one.lanes.span_ns for one in traces), default=1) or 1,
        "kinds": KINDS,
        "fields": [{"label": label, "texts": texts, "of": of} for label, of in columns],
        "shorts": [kernel_text(text).removeprefix("idle: ") for text in texts],
        "groups": groups,
    }


def _rows(one: Drawn, items: _Items) -> list[dict[str, Any]]:
    lanes, shift = one.lanes, one.shift_ns
    names = lanes.names
    rows = [
        _of_events("Host", lanes.host, HOST, names, shift, items),
        _of_events("Waits", lanes.waits, WAIT, names, shift, items) | {"thin": True},
        _of_events("Device", lanes.device, DEVICE, names, shift, items),
        _of_gaps(lanes.gaps, names, shift, items),
    ]
    steps = _of_events("Steps", lanes.steps, STEP, names, shift, items) | {"thin": True}
    return [row for row in ([steps, *rows] if len(lanes.steps) > 1 else rows) if row["at"]]


def _of_events(
    title: str,
    events: Iterable[LaneEvent],
    kind: int,
    names: Sequence[str],
    shift: int,
    items: _Items,
) -> dict[str, Any]:
    row = Row(title)
    for event in events:
        item = items.add(names[event.name] if event.name >= 0 else "?")
        row.add(event.at_ns + shift, event.length_ns, kind, item)
    return row.plain()


def _of_gaps(
    gaps: Iterable[LaneGap], names: Sequence[str], shift: int, items: _Items
) -> dict[str, Any]:
    """One bar for each part of a gap; the parts of one gap are one item, named by the longest."""
    row = Row("Idle")
    for gap in gaps:
        parts = (
            gap.sync_wait_ns, gap.host_ns, gap.launch_path_ns, gap.device_gap_ns, gap.unattributed_ns
        )  # fmt: skip
        longest = _IDLE_KINDS[max(range(len(parts)), key=parts.__getitem__)]
        item = items.add(
            KINDS[longest]["name"],
            names[gap.kernel] if gap.kernel >= 0 else "",
            names[gap.doing] if gap.doing >= 0 else "",
        )
        at = gap.at_ns + shift
        for kind, length in zip(_IDLE_KINDS, parts, strict=True):
            if length:
                row.add(at, length, kind, item)
                at += length
    return row.plain()
