"""Report <-> JSON, by a published schema (docs/report.schema.json)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import SCHEMA_VERSION, Report

_REPORT_AGAIN = "run `graphdoctor analyze ... --json` again"
# JSON has no such numbers; a NaN in a model's output must survive saving all the same.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class _Header(msgspec.Struct, frozen=True):
    schema_version: int


def render(report: Report, look: Look) -> str:
    """Indented JSON; any text and any number of a report can be written and read again."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(report)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


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
    (reference,), components = msgspec.json.schema_components(
        [Report], ref_template="#/$defs/{name}"
    )
    described: dict[str, Any] = _allow_not_finite(components)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphdoctor report",
        "description": f"What `graphdoctor analyze --json` writes, version {SCHEMA_VERSION}.",
        **reference,
        "$defs": described,
    }


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


def writable(value: Any) -> Any:
    """The same plain value with everything that JSON cannot hold written as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value]
    return value


def _allow_not_finite(value: Any) -> Any:
    """The schema with every number also allowed to be one of the words for those JSON lacks."""
    if isinstance(value, list):
        return [_allow_not_finite(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number":
        return {"anyOf": [value, {"enum": list(_NOT_FINITE.values())}]}
    return {key: _allow_not_finite(item) for key, item in value.items()}
