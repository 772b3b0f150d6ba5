"""Report <-> JSON, by a published schema (docs/report.schema.json)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import SCHEMA_VERSION, Report

_REPORT_AGAIN = "run `graphdoctor analyze ... --json` again"


class _Header(msgspec.Struct, frozen=True):
    schema_version: int


def render(report: Report, look: Look) -> str:
    """Indented JSON; any text and any number of a report can be written and read again."""
    return written(report)


def read(path: Path) -> Report:
    """A saved report. Raises UsageError, with the reason, for anything else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the report {path}: {error.strerror or error}") from error
    return parse(content, name=str(path))


def parse(content: bytes, *, name: str) -> Report:
    """The report in `content`; `name` is what errors call it."""
    try:
        version = msgspec.json.decode(content, type=_Header).schema_version
        _check_version(version, name)
        return msgspec.convert(msgspec.json.decode(content), Report, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} is not a graphdoctor report: {error}") from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error) or str(error).endswith(f"(byte {len(content)})"):
            what = "is cut short" if content.strip() else "is empty"
            raise UsageError(f"{name} {what}; {_REPORT_AGAIN}") from error
        raise UsageError(f"{name} is not JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{name} is not a graphdoctor report: it is nested too deeply") from error


def schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    return described(
        Report,
        title="graphdoctor report",
        written_by="`graphdoctor analyze --json` writes",
        version=SCHEMA_VERSION,
    )


def _check_version(version: int, name: str) -> None:
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{name} has report schema version {version}, newer than version {SCHEMA_VERSION} that"
            " this graphdoctor reads; upgrade graphdoctor"
        )
    if version < SCHEMA_VERSION:
        raise UsageError(
            f"{name} has report schema version {version}, but this graphdoctor reads version"
            f" {SCHEMA_VERSION}; {_REPORT_AGAIN}"
        )
