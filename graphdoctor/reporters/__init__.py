"""Report -> text, one module a format."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from graphdoctor.model import Report
from graphdoctor.reporters import json, terminal
from graphdoctor.reporters.look import Look

Reporter = Callable[[Report, Look], str]

REPORTERS: MappingProxyType[str, Reporter] = MappingProxyType(
    {
        "terminal": terminal.render,
        "json": json.render,
    }
)

__all__ = ["REPORTERS", "Look", "Reporter"]
