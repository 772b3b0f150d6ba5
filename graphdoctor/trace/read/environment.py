"""What stands around the events of a trace file -> the same without environment variables, which may hold secrets."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_KEYS = frozenset({"env", "environ", "environment", "environment_variables", "env_vars"})
_MENTIONED = re.compile(rb'"env(iron|ironment|ironment_variables|_vars)?"\s*:', re.IGNORECASE)
_LEFT_OUT = "left out by graphdoctor"
_BEGIN, _END = b'{"traceEvents":[', b"]}"


def header_without(content: bytes) -> bytes:
    """A file's beginning, up to its events, which is given back as it is where it tells no environment."""
    if not _MENTIONED.search(content):
        return content
    return _rewritten(content + _END).removesuffix(_END)


def trailer_without(content: bytes) -> bytes:
    """The same of what follows the last event, from the end of the list on."""
    if not _MENTIONED.search(content):
        return content
    return _rewritten(_BEGIN + content).removeprefix(_BEGIN)


def _rewritten(text: bytes) -> bytes:
    """What cannot be read cannot be told from a secret, and is left out whole."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        found = {"traceEvents": []}
    return msgspec.json.encode(_without(found))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _LEFT_OUT if key.lower() in _KEYS else _without(inner)
            for key, inner in value.items()
        }
    return [_without(inner) for inner in value] if isinstance(value, list) else value
