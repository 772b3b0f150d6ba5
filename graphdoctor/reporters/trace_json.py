"""An explained trace, a folder of traces or two compared -> JSON, by published schemas (docs/trace.schema.json)."""

from __future__ import annotations

from typing import Any

from graphdoctor.reporters.plain_json import parsed, top_level, written
from graphdoctor.values.compared_traces import FolderReport, TraceComparison
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, TraceReport

AnyTrace = TraceReport | FolderReport | TraceComparison


def render(report: AnyTrace) -> str:
    """Indented JSON."""
    return written(report)


def parse(content: bytes, *, name: str) -> AnyTrace:
    """What was saved; `name` is what errors call it. Raises UsageError for anything else."""
    keys = top_level(content)
    kind: Any = (
        FolderReport if "workers" in keys else TraceComparison if "before" in keys else TraceReport
    )
    version, command = TRACE_SCHEMA_VERSION, "graphdoctor trace ... --json"
    found: AnyTrace = parsed(
        content, kind, name=name, what="trace", version=version, command=command
    )
    return found


def is_trace(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any of the three kinds; not whether it is complete."""
    return not {"step_basis", "workers", "before"}.isdisjoint(top_level(content))
