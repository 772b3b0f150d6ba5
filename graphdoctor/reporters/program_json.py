"""A program's steps -> JSON, by a published schema (docs/program.schema.json)."""

from __future__ import annotations

from graphdoctor.reporters.plain_json import parsed, top_level, written
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport


def render(report: ProgramReport) -> str:
    """Indented JSON."""
    return written(report)


def parse(text: str | bytes, *, name: str = "the report") -> ProgramReport:
    """A report that `render` wrote; `name` is what errors call it. Raises UsageError."""
    version = PROGRAM_SCHEMA_VERSION
    return parsed(
        text, ProgramReport, name=name, what="run", version=version, command="graphdoctor run"
    )


def is_program(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any version; not whether it is complete."""
    return {"ending", "steps"} <= top_level(content).keys()
