"""Mark the findings that settings and comments leave out, and note comments without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from graphdoctor.check.relative_paths import RelativePaths, is_inside
from graphdoctor.check.settings.files import Project
from graphdoctor.values.figures import first_of
from graphdoctor.values.finding import Finding, IdleComment, Suppression
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.report import Report

_NAMED = 3


def selected(report: Report, project: Project, *, otherwise: str = "") -> Report:
    """Mark by `select`, `ignore` and `per-file-ignores`; what a comment marked stays the comment's.

    `otherwise` is the file, relative to the project, of a finding that has no line in it.
    """
    relative = RelativePaths(project.root)
    own = otherwise or relative.text(report.target.file)
    findings = tuple(_marked(report.findings, project, relative, own))
    return msgspec.structs.replace(report, findings=findings)


def selected_steps(program: ProgramReport, project: Project) -> ProgramReport:
    """The same for the report of each step of a program."""
    steps = tuple(
        step
        if step.report is None
        else msgspec.structs.replace(step, report=selected(step.report, project))
        for step in program.steps
    )
    return msgspec.structs.replace(program, steps=steps)


def _marked(
    findings: tuple[Finding, ...], project: Project, relative: RelativePaths, own: str
) -> Iterator[Finding]:
    for finding in findings:
        # The nearest frame in the project, relative to it.
        frames = (finding.location, *finding.stack)
        paths = (relative.text(frame.file) for frame in frames if frame is not None)
        path = next(filter(is_inside, paths), "") or own
        setting = project.settings.left_out_by(finding, path)
        if setting and finding.suppressed is None:
            reason = Suppression(f"left out by `{setting}` in the settings")
            yield msgspec.structs.replace(finding, suppressed=reason)
        else:
            yield finding


def unused_comments(results: Iterable[object]) -> list[str]:
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
    return [
        f"{one.location.file}:{one.location.line}: {one.message}"
        + (f" in {first_of(targets[one], _NAMED)}" if one.kind == "unused" else "")
        for one in ordered
    ]


def _used(report: Report) -> Iterable[tuple[str, int, str]]:
    for finding in report.findings:
        if finding.suppressed is not None and finding.suppressed.location is not None:
            place = finding.suppressed.location
            for key in (finding.rule, finding.name):
                yield place.file, place.line, key.lower()
