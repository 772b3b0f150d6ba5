"""The published schemas; tests/docs/test_docs.py holds them to the values that they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def schema_of(what: str) -> dict[str, Any]:
    """Of a "report", "program", "sweep", "trace" or "watch"."""
    found: dict[str, Any] = json.loads((DOCS / f"{what}.schema.json").read_text(encoding="utf-8"))
    return found
