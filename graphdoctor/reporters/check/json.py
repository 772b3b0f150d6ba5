"""Check <-> JSON: everything, each target's whole report included."""

from __future__ import annotations

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.values.check import Check
from graphdoctor.values.file_kinds import top_level


def render(check: Check, look: Look) -> str:
    """Indented JSON; any text and any number can be written and read again."""
    table = msgspec.to_builtins(check)
    for target in table["targets"]:
        del target["analysis_s"]
    return written(table)


def is_check(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any version; not whether it is complete."""
    return bytes(top_level(content).get("kind", b"")) == b'"check"'


def parse(content: bytes, *, name: str) -> Check:
    """The check in `content`; `name` is what errors call it. Raises UsageError."""
    return parsed(content, Check, name=name)
