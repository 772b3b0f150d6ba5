"""Changes -> text, one module a format."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from graphdoctor.reporters.diff import full, markdown
from graphdoctor.reporters.look import Look
from graphdoctor.values.diff import Changes

ChangesReporter = Callable[[Changes, Look], str]

CHANGES_REPORTERS: MappingProxyType[str, ChangesReporter] = MappingProxyType(
    {"full": full.render, "markdown": markdown.render}
)

__all__ = ["CHANGES_REPORTERS", "ChangesReporter"]
