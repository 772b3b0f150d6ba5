"""An audited program -> annotations of GitHub Actions, and a line that sums up."""

from __future__ import annotations

from graphdoctor.reporters.audit_faults import AuditFault, faults_of, headline
from graphdoctor.reporters.check.github import MOST_OF_A_KIND, command, file_and_line
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.locations import path_text


def render(report: AuditReport, look: Look) -> str:
    """Workflow commands, as many as GitHub shows of a step."""
    faults = faults_of(report)
    lines = [_annotation(fault, look.base) for fault in faults[:MOST_OF_A_KIND]]
    lines.append(f"graphdoctor audit: {headline(report)}")
    return "".join(f"{line}\n" for line in lines)


def _annotation(fault: AuditFault, base: str) -> str:
    place = fault.location
    where = file_and_line(path_text(place.file, base), place.line) if place is not None else ""
    lines = (f"{line.label}: {line.text(base)}" for line in fault.lines)
    return command(
        "error", fault.rule, "\n".join((fault.message, *lines, f"Help: {fault.help}")), where
    )
