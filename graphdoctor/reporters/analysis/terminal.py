"""Write a report for people: one screen by default, everything with --all."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.analysis.captures import write_capture
from graphdoctor.reporters.analysis.findings import (
    causes_of,
    entries_of,
    suppressed,
    write_findings,
    write_wrong_replay,
)
from graphdoctor.reporters.analysis.gain import write_gain
from graphdoctor.reporters.analysis.strategies import write_strategies, write_trials
from graphdoctor.reporters.analysis.summary import write_end, write_speedup, write_verdict
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import CODE_INDENT, Page
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import EFFECT_WORDS, Assumption, Finding
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.report import Report

_LIMITS_SHOWN = 3
_NOT_CHECKED, _ASSUMED = _DOUBTS = ("Not checked", "Assumed")


def render(report: Report, look: Look) -> str:
    """The page. Text from the model can neither color nor move anything in it."""
    page = _beginning(report, look)
    write_speedup(page, report)
    if look.show_all:
        _write_suppressed(page, report)
        write_capture(page, report)
        write_gain(page, report)
        write_strategies(page, report)
        _write_remarks(page, report)
        page.heading("Basis")
        for label, text in basis_rows(report, page.look.base):
            page.labelled(f"  {label}" if label else "", text)
    else:
        _write_idle_comments(page, report)
    write_end(page, report)
    return page.render()


def render_beginning(report: Report, look: Look) -> str:
    """The first lines of `render`, which no strategy changes: the verdict and the findings."""
    return _beginning(report, look).render()


def render_trials(report: Report, look: Look) -> str:
    """What follows those lines while strategies are tried: the speedup so far and a table of them."""
    page = Page(look)
    write_speedup(page, report)
    write_trials(page, report.strategies)
    return page.render()


def _beginning(report: Report, look: Look) -> Page:
    page = Page(look)
    write_verdict(page, report)
    write_findings(page, causes_of(entries_of(0, report.findings)))
    write_wrong_replay(page, report)
    _write_limits(page, report)
    return page


def _write_limits(page: Page, report: Report) -> None:
    """What could not be checked, a note each; --all has them among the remarks."""
    if page.look.show_all:
        return
    told = [limit for limit in report.limits if limit.rstrip(".") not in report.reason]
    if told:
        page.blank()
    for limit in told[:_LIMITS_SHOWN]:
        page.wrapped(("note", "bold cyan"), (f": {limit}", ""), indent=len(CODE_INDENT))
    if len(told) > _LIMITS_SHOWN:
        page.line((f"note: {len(told) - _LIMITS_SHOWN} more notes (use --all)", "dim"))


def _write_idle_comments(page: Page, report: Report) -> None:
    """Suppression comments that do nothing."""
    if report.idle_comments:
        page.blank()
    for comment in report.idle_comments:
        where = place_text(comment.location, page.look.base)
        page.wrapped(
            ("warning", "bold yellow"),
            (f": {where}: {comment.message}", ""),
            indent=len(CODE_INDENT),
        )


def _write_remarks(page: Page, report: Report) -> None:
    rows = [*remark_rows(report, page.look.base)]
    if rows:
        page.heading("Remarks")
    for label, text in rows:
        page.labelled(f"  {label}", text, style="yellow" if label in _DOUBTS else "")


def remark_rows(report: Report, base: str) -> Iterator[tuple[str, str]]:
    """What was chosen on the user's behalf, and what could not be seen or checked: labels and text."""
    yield from ((_NOT_CHECKED, limit) for limit in report.limits)
    yield from ((_ASSUMED, _assumed(one, base)) for one in report.assumptions)
    yield from (("Note", note) for note in report.target.notes)
    yield from (("Trace", path_text(path, base)) for path in report.trace_files)


def _assumed(one: Assumption, base: str) -> str:
    where = f" at {place_text(one.location, base)}" if one.location is not None else ""
    return f"{one.what}{where}, {one.code or one.operator}"


def basis_rows(report: Report, base: str) -> Iterator[tuple[str, str]]:
    """What the report is about and where it was made: labels, one of them empty, and text."""
    target, machine = report.target, report.machine
    operators = count_text(report.operators, "operator")
    yield "Target", f"{path_text(target.file, base)}, found by {target.entry}"
    yield "Step", f"{operators}, {count_text(report.iterations, 'iteration')} compared"
    if report.stages:
        times = ", ".join(f"{one.stage} {one.wall_s:.1f} s" for one in report.stages)
        yield "Time", f"{sum(one.wall_s for one in report.stages):.1f} s: {times}"
    yield "Machine", f"{machine.device_name}, torch {machine.torch}, Python {machine.python}"
    yield "", f"{machine.platform}; graphdoctor {report.tool_version}"


def _write_suppressed(page: Page, report: Report) -> None:
    """The section; nothing where there is no suppression."""
    kept = suppressed(report.findings)
    if not kept and not report.idle_comments:
        return
    page.heading("Suppressed", "what is suppressed still counts for the verdict" if kept else "")
    for finding in kept:
        _write_finding(page, finding)
    for comment in report.idle_comments:
        where = place_text(comment.location, page.look.base)
        page.hanging("  ", f"{where}: {comment.message}", style="yellow")


def _write_finding(page: Page, finding: Finding) -> None:
    assert finding.suppressed is not None
    place = finding.location
    where = f" {place_text(place, page.look.base)}" if place is not None else ""
    head = f"{finding.rule} {finding.name}{where}, {EFFECT_WORDS[finding.effect]}"
    page.hanging("  ", f"{head}: {finding.suppressed.reason}", style="dim")
