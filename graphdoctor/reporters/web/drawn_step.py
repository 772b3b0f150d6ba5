"""What the page's script draws of a step's lanes: rows of bars, and the meaning of each bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphdoctor.reporters.web.code import Numbered
from graphdoctor.values.lanes import EagerOperator, Placement, StepLanes
from graphdoctor.values.locations import path_text

SCRIPTS = ("lanes.js", "controls.js")
TICKS_PER_US = 100  # times travel as whole numbers
MOST_DEPTHS = 4  # of modules within modules
HOST, WAIT, DEVICE, GRAPH, COPY, MODULE = range(6)
KINDS = (
    {"name": "work on the host", "class": "host"},
    {"name": "waiting for the device", "class": "wait"},
    {"name": "work on the device", "class": "device"},
    {"name": "a graph", "class": "graph"},
    {"name": "a copy into a graph's input", "class": "copy"},
    {"name": "a module", "class": "module"},
)
_COPY_NAME = "copy into a graph's input"
_WAIT_NAME = "wait for the device"


class Row:
    """Bars one after the other, in the page's ticks; an item is a number of `fields`."""

    def __init__(self, title: str, **look: Any) -> None:
        self._columns: dict[str, list[int]] = {"at": [], "len": [], "kind": [], "item": []}
        self._look = {"title": title} | look

    def add(self, at: int, length: int, kind: int, item: int) -> None:
        for column, value in zip(self._columns.values(), (at, length, kind, item), strict=True):
            column.append(value)

    def plain(self) -> dict[str, Any]:
        return self._look | self._columns


class _Row(Row):
    """Of times in us, without those of no length."""

    def __init__(self, title: str, said: str, **look: Any) -> None:
        super().__init__(title, said=said, **look)

    def add_us(self, at_us: float, length_us: float, kind: int, item: int) -> None:
        if length_us > 0.0:
            length = max(1, round(length_us * TICKS_PER_US))
            self.add(round(at_us * TICKS_PER_US), length, kind, item)


def lanes_data(lanes: StepLanes, findings: Sequence[Numbered], base: str) -> dict[str, Any]:
    """Rows, texts and findings as plain values; items are operators, then graphs, then copies and waits."""
    operators = len(lanes.eager)
    copies = operators + len(lanes.graphs)
    others = len(lanes.graphs) + 2
    nothing = [-1] * others
    places = _Places(lanes, base)
    titles = [*lanes.names, *lanes.graphs, _COPY_NAME, _WAIT_NAME]
    names = [one.name for one in lanes.eager]
    fields = [
        {
            "label": "What",
            "texts": titles,
            "of": names + list(range(len(lanes.names), len(titles))),
        },
        _field("Module", lanes.modules, [one.module for one in lanes.eager] + nothing),
        _field("Line", places.texts, [places.number(one) for one in lanes.eager] + nothing),
        _field("Taken over by", lanes.graphs, [one.graph for one in lanes.eager] + nothing),
        {
            "label": "Kernels",
            "texts": None,
            "of": [one.kernels for one in lanes.eager] + [0] * others,
        },
    ]
    groups = [{"title": "Eager", "nested": True, "rows": _eager_rows(lanes, operators)}]
    if lanes.captured:
        rows = _captured_rows(lanes, operators, copies)
        groups.append({"title": "With graphs", "nested": False, "rows": rows})
    return {
        "ticks": TICKS_PER_US,
        "end": max(1, round(max(lanes.eager_us, lanes.captured_us) * TICKS_PER_US)),
        "kinds": KINDS,
        "moduleKind": MODULE,
        "nest": 1,
        "depths": MOST_DEPTHS,
        "fields": fields,
        "shorts": [title.removeprefix("aten.").removesuffix(".default") for title in titles],
        "findings": _finding_of(lanes, findings) + [0] * others,
        "groups": groups,
    }


def _field(label: str, texts: Iterable[str], of: list[int]) -> dict[str, Any]:
    return {"label": label, "texts": list(texts), "of": of}


class _Places:
    """file:line of operators, each text once."""

    def __init__(self, lanes: StepLanes, base: str) -> None:
        self._files = [path_text(file, base) for file in lanes.files]
        self._numbers: dict[tuple[int, int], int] = {}
        for one in lanes.eager:
            if one.file >= 0:
                self._numbers.setdefault((one.file, one.line), len(self._numbers))

    @property
    def texts(self) -> list[str]:
        return [f"{self._files[file]}:{line}" for file, line in self._numbers]

    def number(self, one: EagerOperator) -> int:
        return self._numbers.get((one.file, one.line), -1)


def _finding_of(lanes: StepLanes, findings: Sequence[Numbered]) -> list[int]:
    """The number of the first finding on each operator's line; 0 where there is none."""
    by_place: dict[tuple[str, int], int] = {}
    for one in findings:
        if (location := one.finding.location) is not None:
            by_place.setdefault((location.file, location.line), one.number)
    return [
        by_place.get((lanes.files[one.file], one.line), 0) if one.file >= 0 else 0
        for one in lanes.eager
    ]


def _eager_rows(lanes: StepLanes, operators: int) -> list[dict[str, Any]]:
    host = _Row("Host", "Eager, host", marked=True)
    device = _Row("Device", "Eager, device")
    graphs = _Row("Graphs", "Taken over", thin=True)
    began, graph, until = 0.0, -1, 0.0
    for number, one in enumerate(lanes.eager):
        _add_host(host, one.at, HOST, number)
        device.add_us(one.at.device_at_us, one.at.device_us, DEVICE, number)
        if one.graph != graph:
            graphs.add_us(began, until - began if graph >= 0 else 0.0, GRAPH, operators + graph)
            began, graph = one.at.host_at_us, one.graph
        until = one.at.host_at_us + one.at.host_us + one.at.waited_us
    graphs.add_us(began, until - began if graph >= 0 else 0.0, GRAPH, operators + graph)
    rows = [host.plain(), device.plain()]
    return [*rows, graphs.plain()] if lanes.graphs else rows


def _captured_rows(lanes: StepLanes, operators: int, copies: int) -> list[dict[str, Any]]:
    host, device = _Row("Host", "With graphs, host"), _Row("Device", "With graphs, device")
    looks = {
        "operator": (HOST, DEVICE, 0),
        "graph": (GRAPH, GRAPH, operators),
        "copy": (COPY, COPY, copies + 1),
        "wait": (HOST, DEVICE, copies + 2),
    }
    for one in lanes.captured:
        on_host, on_device, first = looks[one.what]
        _add_host(host, one.at, on_host, first + one.number)
        device.add_us(one.at.device_at_us, one.at.device_us, on_device, first + one.number)
    return [host.plain(), device.plain()]


def _add_host(row: _Row, at: Placement, kind: int, item: int) -> None:
    row.add_us(at.host_at_us, at.host_us, kind, item)
    row.add_us(at.host_at_us + at.host_us, at.waited_us, WAIT, item)
