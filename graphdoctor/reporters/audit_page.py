"""An audited program -> a page for people."""

from __future__ import annotations

from graphdoctor.reporters.audit_faults import faults_of, headline, verified_text
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.locations import path_text


def render(report: AuditReport, look: Look) -> str:
    """The page. Text from the program can neither color nor move anything in it."""
    page = Page(look)
    page.line((HORIZONTAL * look.width, "dim"))
    page.line(
        ("graphdoctor audit", "bold"),
        (f"  {path_text(' '.join(report.command), look.base)}", "dim"),
    )
    page.paragraph(headline(report))
    if text := verified_text(report):
        page.paragraph(text)
    for fault in faults_of(report):
        page.blank()
        page.hanging("  ", fault.message, style="red")
        for line in fault.lines:
            page.labelled(f"  {line.label}", line.text(look.base))
        page.labelled("  Help", fault.help)
    return page.render()
