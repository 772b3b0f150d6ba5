"""Writes a check as SARIF 2.1.0, as GitHub's code scanning reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any
from urllib.parse import quote

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, CheckedFinding, Occurrence, occurrences
from graphdoctor.values.escape import visible
from graphdoctor.values.finding import EFFECT_WORDS, Finding, Severity

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_PAGES = ("homepage", "repository", "documentation")  # labels of [project.urls], the best first
MOST_RESULTS = 25_000  # of a run; GitHub refuses a file with more
_PROBLEM: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "recommendation"}


def render(check: Check, look: Look) -> str:
    """One run. Findings of the baseline are in it as suppressed, so that they are no new alerts."""
    found = occurrences(check)[:MOST_RESULTS]
    rules = _rules([one.checked for one in found])
    ids = [rule["id"] for rule in rules]
    return one_run(
        version=check.tool_version,
        # GitHub keeps apart what differs in it: the projects of a repository.
        identity=f"graphdoctor/check/{uri(check.prefix)}",
        rules=rules,
        invocation=_invocation(check),
        results=[_result(check, one, ids.index(one.checked.finding.rule)) for one in found],
    )


def one_run(
    *,
    version: str,
    identity: str,
    rules: Sequence[dict[str, Any]],
    invocation: dict[str, Any],
    results: Sequence[dict[str, Any]],
) -> str:
    """A file with one run of graphdoctor."""
    run = {
        "tool": {
            "driver": {
                "name": "graphdoctor",
                "version": version,
                "semanticVersion": version,
                **_home_page(),
                "rules": rules,
            }
        },
        "automationDetails": {"id": identity},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _home_page() -> dict[str, str]:
    """Where to read about the tool; nothing where the package that is installed names no page of its own."""
    try:
        urls = metadata("graphdoctor").get_all("Project-URL") or []
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        urls = []
    pages = {name.casefold(): page for name, _, page in (url.partition(", ") for url in urls)}
    page = next((pages[name] for name in _PAGES if name in pages), "")
    return {"informationUri": page} if page else {}


def _rules(found: Sequence[CheckedFinding]) -> list[dict[str, Any]]:
    """The rules that occur, by their ids."""
    first = {checked.finding.rule: checked for checked in reversed(found)}
    return [_rule(first[rule].finding, first[rule].severity) for rule in sorted(first)]


def _rule(finding: Finding, severity: Severity) -> dict[str, Any]:
    why, fix = visible(" ".join(finding.why.split())), "\n".join(wording.fix_lines(finding))
    return {
        "id": finding.rule,
        "name": "".join(part.capitalize() for part in visible(finding.name).split("-")),
        "shortDescription": {"text": f"{visible(finding.name)}: {EFFECT_WORDS[finding.effect]}."},
        "fullDescription": {"text": why or visible(finding.name)},
        "help": {
            "text": f"{why}\n\nFix: {fix}",
            "markdown": f"{_markdown(why)}\n\n**Fix:** {_markdown(fix)}",
        },
        "defaultConfiguration": {"level": severity},
        "properties": {
            "precision": "high",
            "problem.severity": _PROBLEM[severity],
            "tags": ["cuda-graphs", finding.effect],
        },
    }


def _result(check: Check, one: Occurrence, rule_index: int) -> dict[str, Any]:
    checked = one.checked
    note = wording.library_note(checked)
    worse = wording.came_with(check, one)
    text = visible(checked.finding.message) + (f" ({note})" if note else "")
    text += f" With it, {worse}." if worse else ""
    result = {
        "ruleId": checked.finding.rule,
        "ruleIndex": rule_index,
        "level": checked.severity,
        "message": {"text": text},
        "locations": [_location(check, checked)],
        "partialFingerprints": {
            "primaryLocationLineHash": f"{checked.fingerprint}:1",
            "graphdoctor/v1": checked.fingerprint,
        },
        "properties": {"targets": [visible(name) for name in one.targets], **_cost(checked)},
    }
    if checked.finding.edits:
        result["fixes"] = [_fix(check, checked.finding)]
    if not checked.is_new:
        accepted = {"kind": "external", "status": "accepted", "justification": "in the baseline"}
        result["suppressions"] = [accepted]
    return result


def _fix(check: Check, finding: Finding) -> dict[str, Any]:
    """The cure as replacements of text, which editors can apply."""
    changes = [
        {
            "artifactLocation": {"uri": uri(check.prefix + edit.file)},
            "replacements": [
                {
                    "deletedRegion": {
                        "startLine": edit.start_line,
                        "startColumn": edit.start_column,
                        "endLine": edit.end_line,
                        "endColumn": edit.end_column,
                    },
                    "insertedContent": {"text": edit.new_text},
                }
            ],
        }
        for edit in finding.edits
    ]
    return {"description": {"text": visible(finding.fix)}, "artifactChanges": changes}


def _cost(checked: CheckedFinding) -> dict[str, Any]:
    """What it costs a step, in us, of the first target that has it."""
    cost_us, source = checked.finding.cost_us, visible(checked.finding.cost_source)
    if cost_us is None:
        return {}
    return {"costUs": cost_us.mid, "costUsRange": [cost_us.low, cost_us.high], "costSource": source}


def _location(check: Check, checked: CheckedFinding) -> dict[str, Any]:
    line = max(1, checked.line)
    columns = wording.columns_shown(checked)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(check.prefix + checked.path or "pyproject.toml")},
            "region": {
                "startLine": line,
                "startColumn": columns.start if columns is not None else 1,
                "endLine": line,
                "endColumn": columns.end if columns is not None else len(_code(checked)) + 1,
                "snippet": {"text": visible(_shown(checked))},
            },
        }
    }


def _shown(checked: CheckedFinding) -> str:
    """The code of the region: the expression, or its line."""
    columns, code = wording.columns_shown(checked), _code(checked)
    return code[columns.start - 1 : columns.end - 1] or " " if columns is not None else code


def _code(checked: CheckedFinding) -> str:
    """The line that the location is, as far as the report has it; at least one character."""
    place = checked.finding.location
    is_own = place is not None and place.file == checked.path
    return (checked.finding.code or " ") if is_own else " "


def uri(path: str) -> str:
    """A relative reference; a name that is not UTF-8 keeps its bytes."""
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return quote(visible(path))


def _invocation(check: Check) -> dict[str, Any]:
    """Targets that failed or got worse have no line, so they are told as notifications."""
    notifications = [
        {
            "level": "error",
            "message": {"text": f"{visible(one.target)}: {one.title}: {visible(one.message)}"},
        }
        for one in wording.problems(check)
    ]
    return {
        "executionSuccessful": not any(target.fault for target in check.targets),
        "toolExecutionNotifications": notifications,
    }


def _markdown(text: str) -> str:
    """Backquoted code stays code; nothing in it is HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
