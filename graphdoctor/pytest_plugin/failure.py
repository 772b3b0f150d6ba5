"""A check of one test that failed -> the text of its assertion: each finding with its code."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.check import wording
from graphdoctor.values.check import Check, Occurrence, fails, occurrences
from graphdoctor.values.escape import visible

_SHOWN = 5


def failure_text(check: Check) -> str:
    """Several lines; nothing in them is obeyed by a terminal."""
    return "\n".join(_lines(check))


def _lines(check: Check) -> Iterator[str]:
    new = [
        one for one in occurrences(check, is_new=True) if fails(one.checked.severity, check.fail_on)
    ]
    yield _headline(check, len(new))
    for one in new[:_SHOWN]:
        yield from _finding(one)
    if new[_SHOWN:]:
        yield f"and {len(new) - _SHOWN} more findings"
    for trouble in wording.troubles(check):
        yield f"{trouble.title}: {visible(trouble.message)}"
        yield from wording.details(trouble)
    if check.stale:
        yield "entries of the baseline no longer occur (pytest --graphdoctor-update drops them):"
        for entry in check.stale:
            yield f"  {entry.rule} {visible(entry.path)}: {visible(entry.source)}"


def _headline(check: Check, new: int) -> str:
    report = check.targets[0].report
    verdict = report.verdict if report is not None else "unknown"
    hazards = {0: "", 1: ", 1 hazard that is not allowed"}
    return f"the step is {verdict} as a CUDA graph" + hazards.get(
        new, f", {new} hazards that are not allowed"
    )


def _finding(one: Occurrence) -> Iterator[str]:
    finding = one.checked.finding
    yield ""
    yield f"{wording.title(finding)}: {wording.effect(finding)}"
    note = wording.library_note(one.checked)
    yield f"{wording.place(one.checked.path, one.checked.line)}{f' ({note})' if note else ''}"
    rows = wording.rows(finding)
    for row in rows:
        digits = len(str(rows[-1].number))
        yield f"{'>' if row.is_marked else ' '} {row.number:>{digits}} | {row.text}".rstrip()
    yield f"What: {visible(finding.message)}"
    yield f"Fix: {wording.fix_line(finding)}"
