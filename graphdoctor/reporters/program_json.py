"""A program's steps -> JSON, by a published schema (docs/program.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport


def render(report: ProgramReport) -> str:
    """Indented JSON."""
    return written(report)


def parse(text: str | bytes) -> ProgramReport:
    """A report that `render` wrote."""
    return msgspec.json.decode(text, type=ProgramReport, strict=False)


def schema() -> dict[str, Any]:
    """The JSON schema of a program's report."""
    return described(
        ProgramReport,
        title="graphdoctor run",
        written_by="`graphdoctor run --json` writes",
        version=PROGRAM_SCHEMA_VERSION,
    )
