"""Changes -> a page for people: each target that changed, then how many did not."""

from __future__ import annotations

from graphdoctor.reporters.check.wording import title
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.diff import Changes, FigureChange, TargetChange
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import place_text

_STYLES = {True: "green", False: "red", None: ""}


def render(changes: Changes, look: Look) -> str:
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
