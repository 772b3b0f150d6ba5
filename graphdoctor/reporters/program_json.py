"""A program's steps -> JSON, by a published schema (docs/program.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.errors import UsageError
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport


def render(report: ProgramReport) -> str:
    """Indented JSON."""
    return written(report)


def parse(text: str | bytes, *, name: str = "the report") -> ProgramReport:
    """A report that `render` wrote; `name` is what errors call it. Raises UsageError."""
    try:
        plain = msgspec.json.decode(text)
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != PROGRAM_SCHEMA_VERSION:
            raise UsageError(
                f"{name} is of version {version} of the reports of `graphdoctor run`, and this is version"
                f" {PROGRAM_SCHEMA_VERSION}: run the program again"
            )
        return msgspec.convert(plain, ProgramReport, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not a report of `graphdoctor run`: {error}") from error


def is_program(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any version; not whether it is complete."""
    try:
        signs = msgspec.json.decode(content, type=_Signs)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(bytes(signs.ending)) and bool(bytes(signs.steps))


class _Signs(msgspec.Struct, frozen=True):
    """What tells it from other reports."""

    ending: msgspec.Raw = msgspec.Raw()
    steps: msgspec.Raw = msgspec.Raw()


def schema() -> dict[str, Any]:
    """The JSON schema of a program's report."""
    return described(
        ProgramReport,
        title="graphdoctor run",
        written_by="`graphdoctor run --json` writes",
        version=PROGRAM_SCHEMA_VERSION,
    )
