"""An audited program -> Markdown for a comment on a pull request or a step summary."""

from __future__ import annotations

from graphdoctor.reporters.audit_faults import AuditFault, faults_of, headline
from graphdoctor.reporters.check.markdown import code, escaped, fitted
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AuditReport

MARKER = "<!-- graphdoctor audit -->"


def render(report: AuditReport, look: Look) -> str:
    """The comment; faults that do not fit are counted."""
    word = "failed" if faults_of(report) else "passed"
    head = f"{MARKER}\n### graphdoctor audit {word}: {escaped(headline(report))}"
    return fitted(head, (_fault(fault, look.base) for fault in faults_of(report)))


def _fault(fault: AuditFault, base: str) -> str:
    lines = (f"- {line.label}: {code(line.text(base))}" for line in fault.lines)
    return "\n".join(
        (f"**{fault.rule}**: {escaped(fault.message)}", "", *lines, f"- Help: {fault.help}")
    )
