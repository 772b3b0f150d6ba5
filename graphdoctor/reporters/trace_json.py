"""An explained trace, a folder of traces or two compared -> JSON, by published schemas (docs/trace.schema.json)."""

from __future__ import annotations

from typing import Any

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.compared_traces import FolderReport, TraceComparison
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, TraceReport


def render(report: TraceReport | FolderReport | TraceComparison) -> str:
    """Indented JSON."""
    return written(report)


def schema() -> dict[str, Any]:
    """The JSON schema of all three: one trace, a folder of them, or two compared."""
    return described(
        TraceReport,
        FolderReport,
        TraceComparison,
        title="graphdoctor trace report",
        written_by="`graphdoctor trace --json` writes: one trace, for a folder all of them,"
        " or two before and after a change",
        version=TRACE_SCHEMA_VERSION,
    )
