"""Text from models and their files -> text that a terminal shows and never obeys."""

from __future__ import annotations

TAB_COLUMNS = 4


def visible(text: str) -> str:
    """One line: control characters, line breaks, lone surrogates become escapes such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def visible_lines(text: str) -> list[str]:
    """The same for text whose line breaks and tabs are wanted, such as code or a traceback."""
    return [visible(line.expandtabs(TAB_COLUMNS)) for line in text.split("\n")]
