"""Report -> text, one module a format."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from graphdoctor.reporters.analysis import html, json, terminal
from graphdoctor.reporters.look import Look
from graphdoctor.values.report import Report

Reporter = Callable[[Report, Look], str]

REPORTERS: MappingProxyType[str, Reporter] = MappingProxyType(
    {
        "terminal": terminal.render,
        "json": json.render,
        "html": html.render,
    }
)

__all__ = ["REPORTERS", "Reporter"]
