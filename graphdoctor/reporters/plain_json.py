"""Values -> JSON text that any reader takes, and the schema that describes it."""

from __future__ import annotations

import math
from typing import Any

import msgspec

# JSON has no such numbers; a NaN in a model's output must survive saving all the same.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def written(value: Any) -> str:
    """Indented JSON; any text and any number of the value can be written and read again."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def described(*types: type, title: str, written_by: str, version: int) -> dict[str, Any]:
    """The JSON schema of what `written` makes of a value of one of `types`."""
    references, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    one_of_them = references[0] if len(types) == 1 else {"anyOf": list(references)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": f"What {written_by}, version {version}.",
        **one_of_them,
        "$defs": _allow_not_finite(components),
    }


def writable(value: Any) -> Any:
    """The same plain value with everything that JSON cannot hold written as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value]
    return value


def _allow_not_finite(value: Any) -> Any:
    """The schema with every number also allowed to be one of the words for those JSON lacks."""
    if isinstance(value, list):
        return [_allow_not_finite(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number":
        return {"anyOf": [value, {"enum": list(_NOT_FINITE.values())}]}
    return {key: _allow_not_finite(item) for key, item in value.items()}
