"""Shows the strategies of a report: a table, what came of each, and what to use with code to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len

from graphdoctor.reporters.analysis.gain import SPEED_STYLES
from graphdoctor.reporters.page import Page, Piece
from graphdoctor.values.figures import many_text, more_bytes_text, ratio_range, time_text
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Report
from graphdoctor.values.speed import NO_STRATEGY, Recommendation, StrategyOutcome, StrategyStatus

_INDENT = "  "
_DETAIL_INDENT = "    "
_GAP = "  "
_FIRST_FIGURE = 2  # columns before it hold words, on the left
_STATUS: dict[StrategyStatus, Piece] = {
    "verified": ("verified", "green"),
    "wrong": ("WRONG", "bold magenta"),
    "not-verified": ("unverified", "yellow"),
    "refused": ("refused", "red"),
    "failed": ("failed", "red"),
    "timed-out": ("timed out", "yellow"),
    "unfit": ("skipped", "dim"),
    "planned": ("planned", "dim"),
}
_NOTHING: Piece = ("", "")
_LEGEND = (
    "Captured: the share of what runs on the GPU that graphs launch. Setup: warm-up, compiling and"
    " capture. Memory: compared with eager{less}. Pays at: steps until the setup has paid off."
)
_LESS = ", below 0 for less"

_Cell = Callable[[StrategyOutcome], Piece]


def write_strategies(page: Page, report: Report) -> None:
    """The section; nothing where no strategy was compared."""
    rows = report.strategies
    if not rows:
        return
    measured = any(row.measurement is not None for row in rows)
    gpu = f" for {report.estimate.gpu}" if report.estimate is not None else ""
    on = f"measured on {report.machine.device_name}" if measured else f"predicted{gpu}"
    page.heading("Ways to run it faster", on)
    _write_table(page, in_table(rows), measured=measured)
    for reason, names in skipped_alike(rows).items():
        page.labelled("  Skipped", f"{', '.join(names)}: {reason}", style="dim")
    if measured:
        page.blank()
        is_less = any((row.extra_bytes or 0) < 0 for row in rows)
        legend = _LEGEND.format(less=_LESS if is_less else "")
        page.paragraph(legend, indent=len(_INDENT), style="dim")
    if report.recommendation is not None:
        _write_recommendation(page, report.recommendation)


def write_trials(page: Page, rows: Sequence[StrategyOutcome]) -> None:
    """The table while strategies are tried: a line each, without reasons."""
    page.blank()
    measured = any(row.measurement is not None for row in rows)
    columns = columns_of(in_table(rows), measured=measured)
    widths, fitting = _widths(page, columns)
    for cells in zip(*columns[:fitting], strict=True):
        page.line((_INDENT, ""), *_pieces(cells, widths[:fitting]))


def skipped_alike(rows: Sequence[StrategyOutcome]) -> dict[str, list[str]]:
    """The strategies that were skipped for a reason that others share, by it: one line says it of all."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "unfit":
            names.setdefault(row.reason, []).append(row.strategy)
    return {reason: several for reason, several in names.items() if len(several) > 1}


def in_table(rows: Sequence[StrategyOutcome]) -> list[StrategyOutcome]:
    """The others, which have a row of the table each."""
    alike = skipped_alike(rows)
    return [row for row in rows if row.status != "unfit" or row.reason not in alike]


def _write_table(page: Page, rows: Sequence[StrategyOutcome], *, measured: bool) -> None:
    """On a narrow page, figures that have no room beside the others stand below their row."""
    columns = columns_of(rows, measured=measured)
    widths, fitting = _widths(page, columns)
    heads = [column[0][0] for column in columns[fitting:]]
    for number, cells in enumerate(zip(*columns, strict=True)):
        page.line((_INDENT, ""), *_pieces(cells[:fitting], widths[:fitting]))
        if number:
            row = rows[number - 1]
            rest = zip(heads, cells[fitting:], strict=True)
            below = ", ".join(f"{head} {text}" for head, (text, _) in rest if text)
            if below:
                page.hanging(_DETAIL_INDENT, below, style="dim")
            for detail in details_of(row, page.look.base):
                page.hanging(_DETAIL_INDENT, detail, style="dim")
            for line in row.plan.splitlines():
                part = line.lstrip(" ")
                indent = _DETAIL_INDENT + " " * (len(line) - len(part))
                page.hanging(indent, part, style="dim")


def _widths(page: Page, columns: Sequence[Sequence[Piece]]) -> tuple[list[int], int]:
    """The width of each column, and how many columns the page has room for."""
    widths = [max(cell_len(text) for text, _ in column) for column in columns]
    room = page.look.width - len(_INDENT) + len(_GAP)
    fitting = len(widths)
    while fitting > _FIRST_FIGURE and sum(widths[:fitting]) + len(_GAP) * fitting > room:
        fitting -= 1
    return widths, fitting


def _pieces(cells: Sequence[Piece], widths: Sequence[int]) -> Iterator[Piece]:
    for number, ((text, style), width) in enumerate(zip(cells, widths, strict=True)):
        padding = " " * (width - cell_len(text))
        gap = _GAP if number else ""
        padded = padding + text if number >= _FIRST_FIGURE else text + padding
        yield gap + padded, style


def columns_of(rows: Sequence[StrategyOutcome], *, measured: bool) -> list[list[Piece]]:
    """A heading, and a cell for each row; a column of figures that nobody has is left out."""
    wanted: list[tuple[str, _Cell]] = [
        ("Strategy", lambda row: (row.strategy, "bold")),
        ("Answers", lambda row: _STATUS[row.status]),
        ("Speedup", _measured_cell) if measured else ("Speedup, predicted", _predicted_cell),
        ("Captured", _share_cell),
        ("Setup", _setup_cell),
        ("Memory", _memory_cell),
        ("Pays at", _break_even_cell),
    ]
    columns = [[(head, "dim"), *map(cell, rows)] for head, cell in wanted]
    return [column for column in columns if any(text for text, _ in column[1:])]


def _measured_cell(row: StrategyOutcome) -> Piece:
    if row.measurement is None:
        return _NOTHING
    word = row.measurement.word
    text = {
        "faster": f"{row.measurement.speedup:.2f}x",
        "slower": f"{row.measurement.speedup:.2f}x slower",
        "no change": "no change",
    }[word]
    return text, SPEED_STYLES[word] if row.status == "verified" else ""


def _predicted_cell(row: StrategyOutcome) -> Piece:
    if row.predicted is None or row.status not in ("verified", "not-verified", "planned"):
        return _NOTHING
    return ratio_range(row.predicted), "bold" if row.status == "verified" else ""


def _share_cell(row: StrategyOutcome) -> Piece:
    is_seen = row.measurement is not None or row.status in ("verified", "planned")
    is_known = row.captured_share is not None and is_seen
    return (f"{row.captured_share:.0%}", "") if is_known else _NOTHING


def _setup_cell(row: StrategyOutcome) -> Piece:
    return (time_text(row.prepare_s * 1e6), "") if row.prepare_s is not None else _NOTHING


def _memory_cell(row: StrategyOutcome) -> Piece:
    return (more_bytes_text(row.extra_bytes), "") if row.extra_bytes is not None else _NOTHING


def _break_even_cell(row: StrategyOutcome) -> Piece:
    if row.break_even_calls is not None:
        return many_text(row.break_even_calls), ""
    is_never = row.measurement is not None and row.measurement.word != "faster"
    return ("never", "") if is_never else _NOTHING


def details_of(row: StrategyOutcome, base: str) -> Iterator[str]:
    """Why, and the figures that the table has no room for."""
    at = row.location
    if row.reason:
        is_said = at is None or f"line {at.line} of " in row.reason
        yield row.reason if at is None or is_said else f"{row.reason} ({place_text(at, base)})"
    parts = "; ".join(_figures(row))
    if parts:
        yield parts


def _figures(row: StrategyOutcome) -> Iterator[str]:
    if row.measurement is None:
        return
    timed = row.measurement
    yield (
        f"{timed.speedup_low:.2f} to {timed.speedup_high:.2f} ({timed.confidence:.0%} interval),"
        f" {time_text(timed.eager_us)} to {time_text(timed.graph_us)}"
    )
    if row.predicted is not None:
        yield f"{ratio_range(row.predicted)} was predicted"
    if row.launches_eager is not None and row.launches is not None:
        yield f"{row.launches_eager:,.0f} to {row.launches:,.0f} launches"
    if row.busy_share_eager is not None and row.busy_share is not None:
        yield f"GPU busy {row.busy_share_eager:.0%} to {row.busy_share:.0%}"
    if row.peak_bytes is not None:
        yield f"{more_bytes_text(row.peak_bytes).lstrip('+')} at the peak"
    if timed.clock_note:
        yield timed.clock_note


def advice_label(advice: Recommendation) -> str:
    """Of the line with the recommendation's sentence, which says to keep eager where none pays."""
    return "Advice" if advice.strategy == NO_STRATEGY else "Use"


def _write_recommendation(page: Page, advice: Recommendation) -> None:
    page.blank()
    page.labelled(f"  {advice_label(advice)}", advice.sentence, style="bold")
    if advice.code:
        page.blank()
        page.code(advice.code.rstrip(), indent=len(_DETAIL_INDENT))
        page.blank()
    if advice.then:
        page.labelled("  Then", advice.then)
