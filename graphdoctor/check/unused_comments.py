"""The reports of one check -> notes on suppression comments that did nothing for any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdoctor.values.report import IdleComment, Report

_NAMED = 3


def idle_notes(results: Iterable[object]) -> list[str]:
    """One sentence for each comment: a comment that one target needs is not idle."""
    reports = [result for result in results if isinstance(result, Report)]
    used = {key for report in reports for key in _used(report)}
    targets: dict[IdleComment, list[str]] = {}
    for report in reports:
        for one in report.idle_comments:
            key = (one.location.file, one.location.line, one.rule.lower())
            if one.kind != "unused" or key not in used:
                targets.setdefault(one, []).append(report.target.name)
    ordered = sorted(targets, key=lambda one: (one.location.file, one.location.line, one.rule))
    return [_note(one, targets[one]) for one in ordered]


def _used(report: Report) -> Iterable[tuple[str, int, str]]:
    for finding in report.findings:
        if finding.suppressed is not None and finding.suppressed.location is not None:
            place = finding.suppressed.location
            for key in (finding.rule, finding.name):
                yield place.file, place.line, key.lower()


def _note(one: IdleComment, targets: Sequence[str]) -> str:
    text = f"{one.location.file}:{one.location.line}: {one.message}"
    if one.kind != "unused":
        return text
    others = len(targets) - _NAMED
    more = f" and {others} more" if others > 0 else ""
    return f"{text} in {', '.join(targets[:_NAMED])}{more}"
