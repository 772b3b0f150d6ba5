"""Check -> text, one module a format."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from graphdoctor.reporters.check import (
    concise,
    full,
    github,
    gitlab,
    html,
    json,
    junit,
    markdown,
    sarif,
)
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check

CheckReporter = Callable[[Check, Look], str]

CHECK_REPORTERS: MappingProxyType[str, CheckReporter] = MappingProxyType(
    {
        "full": full.render,
        "concise": concise.render,
        "json": json.render,
        "sarif": sarif.render,
        "github": github.render,
        "gitlab": gitlab.render,
        "junit": junit.render,
        "markdown": markdown.render,
        "html": html.render,
    }
)

__all__ = ["CHECK_REPORTERS", "CheckReporter"]
