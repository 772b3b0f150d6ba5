"""A watched program -> JSON, by a published schema (docs/watch.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.analysis.json import writable
from graphdoctor.values.watched import WATCH_SCHEMA_VERSION, WatchReport


def render(report: WatchReport) -> str:
    """Indented JSON; text that is no valid unicode is escaped."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(report)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of a watched program."""
    (reference,), components = msgspec.json.schema_components(
        [WatchReport], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphdoctor watch",
        "description": f"What `graphdoctor watch --json` writes, version {WATCH_SCHEMA_VERSION}.",
        **reference,
        "$defs": components,
    }
