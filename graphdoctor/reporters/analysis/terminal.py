"""Report -> a page for people: the verdict first, then the reason, then what to do."""

from __future__ import annotations

from graphdoctor.reporters.analysis.captures import write_capture
from graphdoctor.reporters.analysis.findings import write_findings
from graphdoctor.reporters.analysis.gain import write_gain
from graphdoctor.reporters.analysis.strategies import write_strategies
from graphdoctor.reporters.analysis.summary import write_summary
from graphdoctor.reporters.analysis.suppressed import write_suppressed
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import path_text
from graphdoctor.values.report import Report


def render(report: Report, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    write_summary(page, report)
    write_findings(page, report.findings)
    write_suppressed(page, report)
    write_capture(page, report)
    write_gain(page, report)
    write_strategies(page, report)
    _write_remarks(page, report)
    _write_basis(page, report)
    return page.render()


def _write_remarks(page: Page, report: Report) -> None:
    """What was chosen on the user's behalf, and what could not be seen or checked."""
    if not (report.limits or report.target.notes or report.trace_files):
        return
    page.heading("Remarks")
    for limit in report.limits:
        page.labelled("  Not checked", limit, style="yellow")
    for note in report.target.notes:
        page.labelled("  Note", note)
    for path in report.trace_files:
        page.labelled("  Trace", path_text(path, page.look.base))


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
