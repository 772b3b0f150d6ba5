"""The sentences and rows of a check that several formats share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphdoctor.reporters.frame import code_rows
from graphdoctor.values.check import (
    Check,
    CheckedFinding,
    CheckedTarget,
    Figures,
    Occurrence,
    occurrences,
)
from graphdoctor.values.escape import visible, visible_lines
from graphdoctor.values.figures import count_text, joined, share_text
from graphdoctor.values.finding import Finding, by_cure
from graphdoctor.values.locations import Columns

PRUNE = "`graphdoctor baseline --prune`"


class Problem(NamedTuple):
    """Something wrong with a whole target: a figure beyond its limit, or why there is no report."""

    target: str
    path: str
    title: str
    message: str
    details: str


def passed(check: Check) -> bool:
    return check.exit_code == 0


def headline(check: Check) -> str:
    """What the check found, in one line: "2 new findings and 1 regression in 3 targets"."""
    severities = [one.checked.severity for one in occurrences(check, is_new=True)]
    notes = severities.count("note")
    news = len(severities) - notes
    breaches = sum(1 for _ in regressions(check))
    faults = sum(target.fault is not None for target in check.targets)
    parts = [
        count_text(news, "new finding") if news else "",
        count_text(notes, "new note") if notes else "",
        count_text(breaches, "regression") if breaches else "",
        count_text(faults, "failed target") if faults else "",
        f"{count_text(len(check.stale), 'entry')} of the baseline out of date"
        if check.stale
        else "",
    ]
    said = [part for part in parts if part] or ["nothing new"]
    return f"{joined(said)} in {count_text(len(check.targets), 'target')}"


def title(finding: Finding) -> str:
    return visible(f"{finding.rule} {finding.name}")


def causes(found: Sequence[Occurrence]) -> list[list[Occurrence]]:
    """Occurrences that one fix is for, together."""
    return by_cure(found, lambda one: one.checked.finding)


def code_lines(finding: Finding) -> list[str]:
    """The code around the finding's line, with a mark at that line."""
    rows = code_rows(finding, "", width=0)
    digits = max((len(row.gutter) for row in rows), default=0)
    return [
        f"{'>' if row.under else ' '} {row.gutter:>{digits}} | {row.text}".rstrip() for row in rows
    ]


def fix_lines(finding: Finding) -> list[str]:
    """The fix on a line, and the code that it introduces, indented, on lines of its own."""
    return [visible(finding.fix), *(f"    {visible(line)}" for line in finding.fix_code)]


def library_note(checked: CheckedFinding) -> str:
    """Where it really happens, if that is not the place in the project that is shown."""
    place = checked.finding.location
    if place is None or place.file == checked.path:
        return ""
    frames = {(frame.file, frame.line) for frame in checked.finding.stack}
    # A target may be described in the project, and its step lie elsewhere.
    is_called = (checked.path, checked.line) in frames
    return visible(f"in {place.file}:{place.line}{', called from here' if is_called else ''}")


def place(path: str, line: int = 0) -> str:
    """path:line; a target without a file of its own has no place."""
    if not path:
        return ""
    return visible(f"{path}:{line}" if line else path)


def columns_shown(checked: CheckedFinding) -> Columns | None:
    """Of the finding's expression, where the line that is shown is the finding's own."""
    place = checked.finding.location
    is_own = place is not None and (place.file, place.line) == (checked.path, checked.line)
    return checked.finding.columns if is_own else None


def problems(check: Check) -> list[Problem]:
    """Failed targets first, then figures beyond their limits, in the order of the targets."""
    return [*faults(check), *regressions(check)]


def faults(check: Check) -> Iterator[Problem]:
    """Why targets have no report."""
    for target in check.targets:
        if target.fault is not None:
            fault = target.fault
            words = {
                "failed": "target failed",
                "crashed": "target crashed",
                "timed-out": "target timed out",
                "usage": "target not usable",
                "cannot": "target cannot run here",
            }
            yield Problem(target.name, target.path, words[fault.kind], fault.message, fault.details)


def regressions(check: Check) -> Iterator[Problem]:
    """Figures beyond their limits that came without a new finding."""
    words = {
        "budget": "over budget",
        "baseline": "worse than the baseline",
        "verification": "replay is wrong",
    }
    for target in check.targets:
        for breach in target.breaches:
            if breach.belongs_to:
                continue
            yield Problem(target.name, target.path, words[breach.limit_from], breach.message, "")


def came_with(check: Check, one: Occurrence) -> str:
    """The figures that got worse together with a finding: "net: 1 wait ...; 0% ..."; "" if none."""
    said = []
    for target in check.targets:
        own = [
            breach.message
            for breach in target.breaches
            if breach.belongs_to == one.checked.fingerprint
        ]
        if own:
            said.append(visible(f"{target.name}: {'; '.join(own)}"))
    return "; ".join(said)


def details(problem: Problem) -> list[str]:
    """Each behind a mark: a line of a model's own must not start a line of a log."""
    return [f"| {line}" for line in visible_lines(problem.details)] if problem.details else []


def figures_text(figures: Figures) -> str:
    return ", ".join(
        (
            count_text(figures.syncs, "wait"),
            count_text(figures.launches, "launch"),
            count_text(figures.graphs, "graph"),
            f"{share_text(figures.coverage)} captured",
        )
    )


def findings_text(target: CheckedTarget) -> str:
    """1 new, 2 known, 1 suppressed."""
    news = sum(one.is_new for one in target.findings)
    known = len(target.findings) - news
    found = target.report.findings if target.report is not None else ()
    suppressed = sum(finding.suppressed is not None for finding in found)
    counts = {"new": news, "known": known, "suppressed": suppressed}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no findings"


def stale_text(check: Check) -> str:
    """One sentence about entries that no longer occur; "" without any."""
    if not check.stale:
        return ""
    count = len(check.stale)
    occurs, it = ("occurs", "it") if count == 1 else ("occur", "them")
    return f"{count_text(count, 'entry')} of the baseline no longer {occurs}: {PRUNE} drops {it}"


def names(targets: Sequence[str]) -> str:
    return ", ".join(map(visible, targets))
