"""Changes -> Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.check.markdown import code, escaped, fitted
from graphdoctor.reporters.check.wording import title
from graphdoctor.reporters.diff.full import verdicts
from graphdoctor.reporters.look import Look
from graphdoctor.values.diff import Changes, TargetChange
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import place_text

MARKER = "<!-- graphdoctor diff -->"
_MARKS = {True: " (better)", False: " (worse)", None: ""}


def render(changes: Changes, look: Look) -> str:
    """The comment; targets that do not fit are counted."""
    changed = [target for target in changes.targets if not target.is_same]
    same = len(changes.targets) - len(changed)
    head = (
        f"{MARKER}\n### graphdoctor: {count_text(len(changed), 'target')} changed, {same} unchanged"
    )
    targets = ("\n".join(_target(target)) for target in changed)
    return fitted(head, (*targets, *map(escaped, changes.notes)))


def _target(target: TargetChange) -> Iterator[str]:
    yield f"#### {escaped(target.name)}: {escaped(verdicts(target))}"
    yield ""
    yield from (f"- new: {_finding(finding)}" for finding in target.new)
    yield from (f"- gone: {_finding(finding)}" for finding in target.gone)
    for moved in target.moved:
        yield f"- moved: {_finding(moved.finding)}, was in line {moved.before.line}"
    for region in target.regions:
        yield f"- {region.kind}: {escaped(region.text)}"
    if target.figures:
        yield from ("", "| | before | after |", "|---|--:|--:|")
    for figure in target.figures:
        mark = _MARKS[figure.is_better]
        yield f"| {figure.name} | {escaped(figure.before)} | {escaped(figure.after)}{mark} |"


def _finding(finding: Finding) -> str:
    where = f" at {code(place_text(finding.location))}" if finding.location else ""
    return f"**{escaped(title(finding))}**{where}"
