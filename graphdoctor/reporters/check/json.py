"""Check <-> JSON: everything, each target's whole report included."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.check import CHECK_SCHEMA_VERSION, Check
from graphdoctor.values.errors import UsageError


class _Header(msgspec.Struct, frozen=True):
    kind: str


def render(check: Check, look: Look) -> str:
    """Indented JSON; any text and any number can be written and read again."""
    table = msgspec.to_builtins(check)
    for target in table["targets"]:
        del target["analysis_s"]
    return written(table)


def is_check(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any version; not whether it is complete."""
    try:
        return msgspec.json.decode(content, type=_Header).kind == "check"
    except msgspec.DecodeError:
        return False


def parse(content: bytes, *, name: str) -> Check:
    """The check in `content`; `name` is what errors call it. Raises UsageError."""
    try:
        table: Any = msgspec.json.decode(content)
        version = table.get("schema_version") if isinstance(table, dict) else None
        if version != CHECK_SCHEMA_VERSION:
            raise UsageError(
                f"{name} has check schema version {version}, but this graphdoctor reads version"
                f" {CHECK_SCHEMA_VERSION}; run `graphdoctor check --output-format json` again"
            )
        return msgspec.convert(table, Check, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} is not a check of graphdoctor: {error}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
