"""An audited program -> SARIF 2.1.0, as code scanning of GitHub takes it in."""

from __future__ import annotations

import os
from typing import Any

from graphdoctor.reporters.audit_faults import RULES, WHY, AuditFault, faults_of, fingerprints
from graphdoctor.reporters.check.sarif import MOST_RESULTS, one_run, uri
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.escape import visible
from graphdoctor.values.locations import Location


def render(report: AuditReport, look: Look) -> str:
    """One run; paths are relative to the folder that the audit was started in."""
    faults = faults_of(report)[:MOST_RESULTS]
    return one_run(
        version=report.tool_version,
        identity="graphdoctor/audit/",
        rules=[_rule(rule) for rule in RULES],
        invocation={
            "executionSuccessful": report.ending == "finished",
            "exitCode": report.exit_code,
        },
        results=[
            _result(fault, fingerprint, look.base)
            for fault, fingerprint in zip(faults, fingerprints(faults, look.base), strict=True)
        ],
    )


def _rule(rule: str) -> dict[str, Any]:
    return {
        "id": rule,
        "name": "".join(part.capitalize() for part in rule.split("-")),
        "shortDescription": {"text": f"{RULES[rule]}."},
        "fullDescription": {"text": WHY},
        "defaultConfiguration": {"level": "error"},
        "properties": {
            "precision": "high",
            "problem.severity": "error",
            "tags": ["cuda-graphs"],
        },
    }


def _result(fault: AuditFault, fingerprint: str, base: str) -> dict[str, Any]:
    place = fault.location or Location("pyproject.toml", 1)
    return {
        "ruleId": fault.rule,
        "ruleIndex": list(RULES).index(fault.rule),
        "level": "error",
        "message": {"text": f"{visible(fault.message)} {fault.help}"},
        "locations": [_location(place, base)],
        "relatedLocations": [
            _location(line.location, base)
            | {"message": {"text": visible(f"{line.label}: {line.text(base)}")}}
            for line in fault.lines
            if line.location is not None
        ],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }


def _location(place: Location, base: str) -> dict[str, Any]:
    path = uri(place.file.removeprefix(base.rstrip(os.sep) + os.sep) if base else place.file)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": f"file://{path}" if path.startswith("/") else path},
            "region": {"startLine": max(1, place.line)},
        }
    }
