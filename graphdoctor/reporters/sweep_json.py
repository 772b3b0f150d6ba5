"""A sweep over batch sizes -> JSON, by a published schema (docs/sweep.schema.json)."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.analysis.json import writable
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep


def render(sweep: Sweep) -> str:
    """Indented JSON; text that is no valid unicode is escaped."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(sweep)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of a sweep."""
    (reference,), components = msgspec.json.schema_components(
        [Sweep], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphdoctor sweep",
        "description": f"What `graphdoctor sweep --json` writes, version {SWEEP_SCHEMA_VERSION}.",
        **reference,
        "$defs": components,
    }
