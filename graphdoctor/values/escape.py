"""Makes text from models and their files safe to show: a terminal never obeys it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TAB_COLUMNS = 4
_TEXTLESS = frozenset({int, float, bool, type(None)})  # of which a page's lanes have 700,000


def visible(text: str) -> str:
    """One line: control characters, line breaks, lone surrogates become escapes such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def visible_lines(text: str) -> list[str]:
    """The same for text whose line breaks and tabs are wanted, such as code or a traceback."""
    return [visible(line.expandtabs(TAB_COLUMNS)) for line in text.split("\n")]


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same plain value with each of its texts changed, and its keys as they are."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _TEXTLESS else with_texts(item, change) for item in value]
    return value
