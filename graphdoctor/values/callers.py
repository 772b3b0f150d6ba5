"""Where something happened and what led there -> the nearest line that is the user's own."""

from __future__ import annotations

from collections.abc import Iterable

from graphdoctor.values.report import Finding, Location

_PACKAGES = ("site-packages/", "dist-packages/")


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, on this machine or where a report was made."""
    plain = path.replace("\\", "/")
    return plain.startswith(_PACKAGES) or any(f"/{folder}" in plain for folder in _PACKAGES)


def own_line(frames: Iterable[Location | None]) -> Location | None:
    """The first that is not a library's; None where all are."""
    return next(
        (frame for frame in frames if frame is not None and not is_library(frame.file)), None
    )


def caller_of(finding: Finding) -> Location | None:
    """The user's line that led to a finding in a library; None where it is the finding's own."""
    if finding.location is None or not is_library(finding.location.file):
        return None
    return own_line(finding.stack)
