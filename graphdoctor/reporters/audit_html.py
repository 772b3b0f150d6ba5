"""An audited program -> one HTML file: what was found, and which graphs it captured."""

from __future__ import annotations

from graphdoctor.reporters.audit_faults import faults_of, headline, verified_text
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import parts
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.locations import path_text, place_text


def render(report: AuditReport, look: Look) -> str:
    """The page, which asks no network for anything and runs no script."""
    return document(
        "audit.html",
        report=report,
        command=path_text(" ".join(report.command), look.base),
        headline=headline(report),
        verified=verified_text(report),
        faults=[
            (fault, [(line.label, line.text(look.base)) for line in fault.lines])
            for fault in faults_of(report)
        ],
        graphs=[
            (place_text(each.location, look.base) if each.location is not None else "", each)
            for each in report.audited_graphs
        ],
        parts=parts,
    )
