"""Writes a check as a code quality report of GitLab, which compares two branches by fingerprints itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, occurrences
from graphdoctor.values.escape import visible
from graphdoctor.values.finding import Severity

_SEVERITIES: dict[Severity, str] = {"error": "major", "warning": "minor", "note": "info"}


def render(check: Check, look: Look) -> str:
    """An array of issues, known ones too; the fingerprint of each occurs once."""
    return json.dumps([*_findings(check), *_problems(check)], indent=2) + "\n"


def _findings(check: Check) -> Iterator[dict[str, object]]:
    for one in occurrences(check):
        finding, checked = one.checked.finding, one.checked
        worse = wording.came_with(check, one)
        message = visible(finding.message) + (f" (with it, {worse})" if worse else "")
        yield {
            "check_name": visible(finding.rule),
            "description": f"{wording.title(finding)}: {message}",
            "severity": _SEVERITIES[checked.severity],
            "fingerprint": checked.fingerprint,
            "location": place_of(check.prefix + checked.path, checked.line),
        }


def _problems(check: Check) -> Iterator[dict[str, object]]:
    for problem in wording.problems(check):
        key = "\0".join((problem.target, problem.title, problem.message))
        yield {
            "check_name": problem.title.replace(" ", "-"),
            "description": f"{visible(problem.target)}: {visible(problem.message)}",
            "severity": "critical",
            "fingerprint": hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:32],
            "location": place_of(check.prefix + problem.path, 1),
        }


def place_of(path: str, line: int) -> dict[str, object]:
    """GitLab drops an issue without a path, so one without a file is told of the settings."""
    position = {"line": max(1, line), "column": 1}
    return {
        "path": visible(path) or "pyproject.toml",
        "positions": {"begin": position, "end": position},
    }
