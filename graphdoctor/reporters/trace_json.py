"""An explained trace, a folder of traces or two compared -> JSON, by published schemas (docs/trace.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.values.compared_traces import FolderReport, TraceComparison
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, TraceReport


def render(report: TraceReport | FolderReport | TraceComparison) -> str:
    """Indented JSON; text that is no valid unicode is escaped."""
    plain = _writable(msgspec.to_builtins(report))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of all three: one trace, a folder of them, or two compared."""
    references, components = msgspec.json.schema_components(
        [TraceReport, FolderReport, TraceComparison], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphdoctor trace report",
        "description": f"What `graphdoctor trace --json` writes, version {TRACE_SCHEMA_VERSION}:"
        " one trace, for a folder all of them, or two before and after a change.",
        "anyOf": list(references),
        "$defs": components,
    }


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(item) for item in value]
    return value
