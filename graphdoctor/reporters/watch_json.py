"""A watched program -> JSON, by a published schema (docs/watch.schema.json)."""

from __future__ import annotations

from typing import Any

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.watched import WATCH_SCHEMA_VERSION, WatchReport


def render(report: WatchReport) -> str:
    """Indented JSON."""
    return written(report)


def schema() -> dict[str, Any]:
    """The JSON schema of a watched program."""
    return described(
        WatchReport,
        title="graphdoctor watch",
        written_by="`graphdoctor watch --json` writes",
        version=WATCH_SCHEMA_VERSION,
    )
