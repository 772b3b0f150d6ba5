"""A sweep over batch sizes -> JSON, by a published schema (docs/sweep.schema.json)."""

from __future__ import annotations

from typing import Any

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep


def render(sweep: Sweep) -> str:
    """Indented JSON."""
    return written(sweep)


def schema() -> dict[str, Any]:
    """The JSON schema of a sweep."""
    return described(
        Sweep,
        title="graphdoctor sweep",
        written_by="`graphdoctor sweep --json` writes",
        version=SWEEP_SCHEMA_VERSION,
    )
