"""Report -> a page for people: the verdict first, then the reason, then what to do."""

from __future__ import annotations

from graphdoctor.reporters.analysis.captures import write_capture
from graphdoctor.reporters.analysis.findings import worst_first, write_findings
from graphdoctor.reporters.analysis.gain import write_gain
from graphdoctor.reporters.analysis.strategies import write_strategies
from graphdoctor.reporters.analysis.summary import write_summary
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import EFFECT_WORDS, count_text
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.report import Assumption, Finding, Report


def render(report: Report, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    write_summary(page, report)
    write_findings(page, report.findings)
    _write_suppressed(page, report)
    write_capture(page, report)
    write_gain(page, report)
    write_strategies(page, report)
    _write_remarks(page, report)
    _write_basis(page, report)
    return page.render()


def _write_remarks(page: Page, report: Report) -> None:
    """What was chosen on the user's behalf, and what could not be seen or checked."""
    if not (report.limits or report.assumptions or report.target.notes or report.trace_files):
        return
    page.heading("Remarks")
    for limit in report.limits:
        page.labelled("  Not checked", limit, style="yellow")
    for one in report.assumptions:
        page.labelled("  Assumed", _assumed(one, page.look.base), style="yellow")
    for note in report.target.notes:
        page.labelled("  Note", note)
    for path in report.trace_files:
        page.labelled("  Trace", path_text(path, page.look.base))


def _assumed(one: Assumption, base: str) -> str:
    where = f" at {place_text(one.location, base)}" if one.location is not None else ""
    return f"{one.what}{where}, {one.code or one.operator}"


def _write_basis(page: Page, report: Report) -> None:
    """What the report is about and where it was made."""
    target, machine = report.target, report.machine
    device = "emulated CUDA device" if machine.device == "emulated" else machine.device_name
    file = path_text(target.file, page.look.base)
    operators = count_text(report.operators, "operator")
    page.heading("Basis")
    page.labelled("  Target", f"{file}, found by {target.entry}")
    page.labelled("  Step", f"{operators}, {count_text(report.iterations, 'iteration')} compared")
    page.labelled("  Machine", f"{device}, torch {machine.torch}, Python {machine.python}")
    page.labelled("", f"{machine.platform}; graphdoctor {report.tool_version}")


def _write_suppressed(page: Page, report: Report) -> None:
    """The section; nothing where there is no suppression."""
    kept = [one for one in worst_first(report.findings) if one.suppressed is not None]
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
