"""Shows what changed between two reports, on a page or in Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.check.markdown import code, escaped, fitted
from graphdoctor.reporters.check.wording import title
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.check import Changes, FigureChange, TargetChange
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import place_text

_STYLES = {True: "green", False: "red", None: ""}


def page(changes: Changes, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    page.line((f"{changes.before} -> {changes.after}", "bold"))
    changed = [target for target in changes.targets if not target.is_same]
    for target in changed:
        _write_target(page, target)
    same = len(changes.targets) - len(changed)
    page.blank()
    if same:
        page.paragraph(f"{count_text(same, 'target')} without a change")
    for note in changes.notes:
        page.hanging("Note  ", note)
    return page.render()


def verdicts(target: TargetChange) -> str:
    """unsafe -> safe; "new target" and "gone" for one that a side lacks."""
    if target.before is None:
        return f"new target, {target.after}"
    if target.after is None:
        return "target is gone"
    if target.before == target.after:
        return target.after
    return f"{target.before} -> {target.after}"


def _write_target(page: Page, target: TargetChange) -> None:
    page.heading(target.name, verdicts(target))
    for label, findings, style in (("New", target.new, "red"), ("Gone", target.gone, "green")):
        for finding in findings:
            page.labelled(f"  {label}", _finding(finding, page.look), style=style)
    for moved in target.moved:
        text = f"{_finding(moved.finding, page.look)}, was in line {moved.before.line}"
        page.labelled("  Moved", text)
    for region in target.regions:
        page.labelled(f"  {region.kind.capitalize()}", region.text)
    for figure in target.figures:
        _write_figure(page, figure)


def _finding(finding: Finding, look: Look) -> str:
    where = f" {place_text(finding.location, look.base)}" if finding.location else ""
    return f"{title(finding)}{where}"


def _write_figure(page: Page, figure: FigureChange) -> None:
    word = {True: ", better", False: ", worse", None: ""}[figure.is_better]
    text = f"{figure.name}: {figure.before} -> {figure.after}{word}"
    page.labelled("  Figure", text, style=_STYLES[figure.is_better])


MARKER = "<!-- graphdoctor diff -->"
_MARKS = {True: " (better)", False: " (worse)", None: ""}


def markdown(changes: Changes, look: Look) -> str:
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
    yield from (f"- new: {_finding_text(finding)}" for finding in target.new)
    yield from (f"- gone: {_finding_text(finding)}" for finding in target.gone)
    for moved in target.moved:
        yield f"- moved: {_finding_text(moved.finding)}, was in line {moved.before.line}"
    for region in target.regions:
        yield f"- {region.kind}: {escaped(region.text)}"
    if target.figures:
        yield from ("", "| | before | after |", "|---|--:|--:|")
    for figure in target.figures:
        mark = _MARKS[figure.is_better]
        yield f"| {figure.name} | {escaped(figure.before)} | {escaped(figure.after)}{mark} |"


def _finding_text(finding: Finding) -> str:
    where = f" at {code(place_text(finding.location))}" if finding.location else ""
    return f"**{escaped(title(finding))}**{where}"
