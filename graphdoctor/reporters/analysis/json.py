"""Report <-> JSON, by a published schema (docs/report.schema.json)."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.reporters import files
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.values.report import Report


def render(report: Report, look: Look) -> str:
    """Indented JSON; any text and any number of a report can be written and read again."""
    return written(report)


def read(path: Path) -> Report:
    """A saved report. Raises UsageError, with the reason, for anything else."""
    return parse(files.read(path), name=str(path))


def parse(content: bytes, *, name: str) -> Report:
    """The report in `content`; `name` is what errors call it."""
    return parsed(content, Report, name=name)
