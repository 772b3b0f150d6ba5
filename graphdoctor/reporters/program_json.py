"""A program's steps -> JSON, by a published schema (docs/program.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.analysis.json import writable
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport


def render(report: ProgramReport) -> str:
    """Indented JSON; text that is no valid unicode is escaped."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(report)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of a program's report."""
    (reference,), components = msgspec.json.schema_components(
        [ProgramReport], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphdoctor run",
        "description": f"What `graphdoctor run --json` writes, version {PROGRAM_SCHEMA_VERSION}.",
        **reference,
        "$defs": components,
    }
