"""An audited program -> a code quality report of GitLab, which compares two branches by fingerprints itself."""

from __future__ import annotations

import json

from graphdoctor.reporters.audit_faults import faults_of, fingerprints
from graphdoctor.reporters.check.gitlab import place_of
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.escape import visible
from graphdoctor.values.locations import path_text


def render(report: AuditReport, look: Look) -> str:
    """An array of issues; the fingerprint of each occurs once."""
    faults = faults_of(report)
    issues = []
    for fault, fingerprint in zip(faults, fingerprints(faults, look.base), strict=True):
        lines = (f"{line.label}: {line.text(look.base)}." for line in fault.lines)
        place = fault.location
        issues.append(
            {
                "check_name": fault.rule,
                "description": " ".join((visible(fault.message), *lines, fault.help)),
                "severity": "major",
                "fingerprint": fingerprint,
                "location": place_of(path_text(place.file, look.base), place.line)
                if place is not None
                else place_of("", 1),
            }
        )
    return json.dumps(issues, indent=2) + "\n"
