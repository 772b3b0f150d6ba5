"""Writes an analysis, or the report of a program, as one HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from graphdoctor.reporters.analysis.captures import (
    difference_text,
    needs_text,
    outcome_text,
    span_text,
)
from graphdoctor.reporters.analysis.findings import (
    causes_of,
    context_text,
    entries_of,
    suppressed,
)
from graphdoctor.reporters.analysis.gain import (
    basis_text,
    estimate_rows,
    fed_by_text,
    measurement_rows,
)
from graphdoctor.reporters.analysis.strategies import (
    advice_label,
    columns_of,
    details_of,
    in_table,
    skipped_alike,
)
from graphdoctor.reporters.analysis.summary import VERDICTS, summary_rows
from graphdoctor.reporters.analysis.terminal import basis_rows, remark_rows
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Piece
from graphdoctor.reporters.program_page import (
    WORST_FIRST,
    figure_fixed,
    figure_now,
    notes_of,
    of_patch,
    of_recorded,
    of_wait,
    orders_of,
    verdict_of,
    waits_between,
    what_happened,
)
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import Numbered, files_of, parts, prose
from graphdoctor.reporters.web.drawn_step import SCRIPTS, lanes_data
from graphdoctor.values.figures import Range, count_text, time_range, time_text
from graphdoctor.values.finding import EFFECT_WORDS, caller_of, effect_text
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Estimate, StrategyOutcome


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """A row of the strategies' table; `mark` is its speed-up on the axis."""

    row: StrategyOutcome
    cells: tuple[str, ...]
    mark: Mark | None
    details: tuple[str, ...]


def render(report: Report, look: Look) -> str:
    """The page, which asks no network for anything. Every text is escaped; nothing of it is obeyed."""
    numbers = count(1)
    causes = [
        [Numbered(next(numbers), entry.finding) for entry in cause]
        for cause in causes_of(entries_of(0, report.findings))
    ]
    findings = [one for cause in causes for one in cause]
    lanes = report.lanes
    data = lanes_data(lanes, findings, look.base) if lanes is not None else None
    modules, left_out = module_rows(lanes, findings) if lanes is not None else ([], 0)
    ratios = [ratio for row in report.strategies if (ratio := _ratio(row)) is not None]
    scale = scale_of(ratios)
    rows = in_table(report.strategies)
    is_measured = any(row.measurement is not None for row in report.strategies)
    columns = columns_of(rows, measured=is_measured)
    return document(
        "analysis.html",
        data=data,
        scripts=SCRIPTS,
        report=report,
        base=look.base,
        verdict=VERDICTS[report.verdict][0],
        summary=[*summary_rows(report, look.base)],
        key_figures=[*_key_figures(report)],
        causes=causes,
        files=files_of(findings, look.base),
        suppressed=suppressed(report.findings),
        lanes=lanes,
        modules=modules,
        modules_left_out=left_out,
        strategies=[*_strategy_rows(rows, columns, scale, look.base)],
        skipped=skipped_alike(report.strategies),
        heads=[column[0][0] for column in columns],
        has_marks=bool(ratios),
        scale=scale,
        width=WIDTH,
        estimate=[*estimate_rows(report.estimate)] if report.estimate is not None else [],
        estimate_basis=_basis(report.estimate) if report.estimate is not None else "",
        measurement=[*measurement_rows(report.measurement)] if report.measurement else [],
        remarks=[*remark_rows(report, look.base)],
        basis=[*basis_rows(report, look.base)],
        is_measured=is_measured,
        **_WORDS,
    )


def _basis(estimate: Estimate) -> str:
    """The GPU and the host that the figures are for."""
    return f"{basis_text(estimate)}{fed_by_text(estimate)}"


def _key_figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """What the page shows large: a label, a figure and what it rests on."""
    found, timed = report.estimate, report.measurement
    if timed is not None:
        yield "Eager step", time_text(timed.eager_us), f"measured on {timed.gpu}"
        yield "As a graph", time_text(timed.graph_us), f"{timed.speedup:.2f}x, {timed.word}"
    elif found is not None:
        yield "Eager step", *_split(time_range(found.eager_us))
        yield "With graphs", *_split(time_range(found.graph_us))
    if found is not None:
        yield "GPU busy in eager", *_split(time_range(found.device_busy_us))
    launches = count_text(found.launches, "launch") if found is not None else ""
    yield "Operators", f"{report.operators:,}", launches


def _split(figure: str) -> tuple[str, str]:
    """ "12 us (10 to 15)": the middle, and the bounds in brackets."""
    middle, bracket, bounds = figure.partition(" (")
    return middle, bounds.removesuffix(")") if bracket else ""


def _ratio(row: StrategyOutcome) -> Range | None:
    """Its speed-up with bounds, where the table has one."""
    timed = row.measurement
    if timed is not None:
        ratio = Range(timed.speedup_low, timed.speedup, timed.speedup_high)
    elif row.predicted is not None and row.status in ("verified", "not-verified", "planned"):
        ratio = row.predicted
    else:
        return None
    return ratio if is_shown(ratio) else None


def _strategy_rows(
    rows: Sequence[StrategyOutcome], columns: Sequence[Sequence[Piece]], scale: Scale, base: str
) -> Iterator[StrategyRow]:
    for number, row in enumerate(rows, start=1):
        ratio = _ratio(row)
        yield StrategyRow(
            row,
            cells=tuple(column[number][0] for column in columns),
            mark=scale.mark(ratio) if ratio is not None else None,
            details=tuple(details_of(row, base)),
        )


_WORDS: dict[str, Any] = {
    "EFFECTS": EFFECT_WORDS,
    "advice_label": advice_label,
    "caller_of": caller_of,
    "context_text": context_text,
    "difference_text": difference_text,
    "effect_text": effect_text,
    "needs_text": needs_text,
    "outcome_text": outcome_text,
    "parts": parts,
    "place_text": place_text,
    "prose": prose,
    "span_text": span_text,
    "time_range": time_range,
    "time_text": time_text,
}


WIDTH = 240.0  # units of the pictures' view boxes
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WIDEST = 1000.0  # a bound beyond this is drawn at the edge


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an interval and its middle lie."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Scale:
    """From the least to the greatest of what is shown, 1x always among it."""

    low: float
    high: float

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions and words."""
        return [(self.at(tick), f"{tick:g}x") for tick in _TICKS if self.low <= tick <= self.high]

    def at(self, ratio: float) -> float:
        span = math.log(self.high / self.low)
        position = math.log(min(max(ratio, self.low), self.high) / self.low) / span * WIDTH
        return round(position, 1)

    def mark(self, ratio: Range) -> Mark:
        return Mark(self.at(ratio.low), self.at(ratio.mid), self.at(ratio.high))


def scale_of(ratios: Iterable[Range]) -> Scale:
    """With a little room at both ends; what is not finite or not above 0 has no place on it."""
    bounds = [
        bound
        for ratio in ratios
        for bound in (ratio.low, ratio.mid, ratio.high)
        if math.isfinite(bound) and bound > 0.0
    ]
    low, high = min([1.0, *bounds]), max([1.0, *bounds])
    return Scale(max(low * 0.85, 1 / _WIDEST), min(high * 1.15, _WIDEST))


def is_shown(ratio: Range) -> bool:
    """Whether it has a place on a logarithmic axis."""
    return all(math.isfinite(bound) and bound > 0.0 for bound in (ratio.low, ratio.mid, ratio.high))


MOST_ROWS = 120
_OUTSIDE = "(outside any module)"


@dataclass(slots=True)
class ModuleRow:
    """A module with all that it holds; `graphs` are those that take over operators of it, all but `eager` ones.

    `share` is of the host's time in the eager step. `findings` are numbers on the page, `below` the modules in it.
    """

    path: str
    depth: int
    operators: int = 0
    launches: int = 0
    host_us: float = 0.0
    device_us: float = 0.0
    share: float = 0.0
    eager: int = 0
    graphs: dict[str, None] = field(default_factory=dict)
    findings: dict[int, None] = field(default_factory=dict)
    below: dict[str, ModuleRow] = field(default_factory=dict)


def module_rows(lanes: StepLanes, findings: Sequence[Numbered]) -> tuple[list[ModuleRow], int]:
    """Modules in the order in which the step reaches them, and how many more there are.

    Where there are too many, the deepest are left out.
    """
    root = _tree(lanes, findings)
    nodes = [*_walk(root)]
    depths = sorted(node.depth for node in nodes)
    deepest = depths[MOST_ROWS] - 1 if len(depths) > MOST_ROWS else len(nodes)
    kept = [node for node in nodes if node.depth <= max(deepest, 1)][:MOST_ROWS]
    total = sum(node.host_us for node in root.below.values()) or 1.0
    for node in kept:
        node.share = node.host_us / total
    return kept, len(nodes) - len(kept)


def _tree(lanes: StepLanes, findings: Sequence[Numbered]) -> ModuleRow:
    places = {
        (one.finding.location.file, one.finding.location.line): one.number
        for one in reversed(findings)
        if one.finding.location is not None
    }
    root = ModuleRow("", 0)
    chains: dict[int, list[ModuleRow]] = {}
    for one in lanes.eager:
        chain = chains.get(one.module)
        if chain is None:
            chain = chains[one.module] = _chain(root, lanes.modules[one.module])
        number = places.get((lanes.files[one.file], one.line)) if one.file >= 0 else None
        for node in chain:
            node.operators += 1
            node.launches += one.kernels
            node.host_us += one.at.host_us + one.at.waited_us
            node.device_us += one.at.device_us
            node.eager += one.graph < 0
            node.graphs |= {lanes.graphs[one.graph]: None} if one.graph >= 0 else {}
            node.findings |= {number: None} if number is not None else {}
    return root


def _chain(root: ModuleRow, path: str) -> list[ModuleRow]:
    """The nodes from the first part of a path to its last."""
    nodes, node, so_far = [], root, ""
    for part in path.split(".") if path else [_OUTSIDE]:
        so_far = f"{so_far}.{part}" if so_far else part
        node = node.below.setdefault(part, ModuleRow(so_far, node.depth + 1))
        nodes.append(node)
    return nodes


def _walk(node: ModuleRow) -> Iterator[ModuleRow]:
    for below in node.below.values():
        yield below
        yield from _walk(below)


def render_program(report: ProgramReport, look: Look) -> str:
    """The page, which needs no network. All text of a program is escaped."""
    from markupsafe import escape

    verdicts = [step.report.verdict for step in report.steps if step.report is not None]
    worst = next((one for one in WORST_FIRST if one in verdicts), "unknown")
    return document(
        "program.html",
        framed=SCRIPTS,
        report=report,
        command=path_text(" ".join(report.command), look.base),
        sentence=what_happened(report),
        css=worst,
        verdict_of=verdict_of,
        parts=parts,
        pages=[
            escape(render(step.report, look)) if step.report is not None else ""
            for step in report.steps
        ],
        notes=notes_of(report),
        now=[figure_now(step) for step in report.steps],
        fixed=[figure_fixed(step) for step in report.steps],
        changes=any(step.change or step.no_change for step in report.steps),
        recorded=[of_recorded(step) for step in report.steps],
        waits=[of_wait(step, wait, look.base) for step, wait in waits_between(report)],
        patch=of_patch(report.patch) if report.patch is not None else "",
        orders=[*orders_of(report, look.base)],
        loading=report.loading_share,
        on_cpu=report.machine is None or report.machine.device == "emulated",
    )
