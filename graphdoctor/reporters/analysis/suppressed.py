"""Report -> what its author chose not to hear of, and comments that suppress nothing."""

from __future__ import annotations

from graphdoctor.reporters.analysis.findings import worst_first
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import EFFECT_WORDS
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Finding, Report


def write_suppressed(page: Page, report: Report) -> None:
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
