"""Prepare the lanes of traces for the page's script: ranks above each other, gaps by their causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphdoctor.reporters.trace_page import kernel_text
from graphdoctor.reporters.web.drawn_step import Row
from graphdoctor.values.trace_lanes import LaneEvent, LaneGap, TraceLanes

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
