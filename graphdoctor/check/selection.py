"""A report and the project's settings -> the report, with what the settings leave out marked."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphdoctor.check.relative_paths import Locality, is_inside
from graphdoctor.check.settings.files import Project
from graphdoctor.values.report import Finding, Report, Suppression


def selected(report: Report, project: Project, *, otherwise: str = "") -> Report:
    """Mark by `select`, `ignore` and `per-file-ignores`; what a comment marked stays the comment's.

    `otherwise` is the file, relative to the project, of a finding that has no line in it.
    """
    locality = Locality(project.root)
    own = otherwise or locality.text(report.target.file)
    findings = tuple(_marked(report.findings, project, locality, own))
    return msgspec.structs.replace(report, findings=findings)


def _marked(
    findings: tuple[Finding, ...], project: Project, locality: Locality, own: str
) -> Iterator[Finding]:
    for finding in findings:
        path = _path(finding, locality) or own
        setting = project.settings.left_out_by(finding, path)
        if setting and finding.suppressed is None:
            reason = Suppression(f"left out by `{setting}` in the settings")
            yield msgspec.structs.replace(finding, suppressed=reason)
        else:
            yield finding


def _path(finding: Finding, locality: Locality) -> str:
    """Of the nearest frame in the project, relative to it; "" without one."""
    frames = (finding.location, *finding.stack)
    paths = (locality.text(frame.file) for frame in frames if frame is not None)
    return next(filter(is_inside, paths), "")
