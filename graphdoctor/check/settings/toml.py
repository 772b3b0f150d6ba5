"""Settings and targets -> TOML that `config.parse` reads back as the same settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from graphdoctor.check.settings.settings import Budgets, Settings, TargetSettings, default_name

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TABLES = ("targets", "per_file_ignores")


def settings_toml(settings: Settings) -> str:
    """Every setting, defaults too."""
    lines = [
        f"{one.name.replace('_', '-')} = {_value(getattr(settings, one.name))}"
        for one in fields(Settings)
        if one.name not in _TABLES
    ]
    if settings.per_file_ignores:
        lines += ["", "[per-file-ignores]"]
        lines += [f"{_key(name)} = {_value(rules)}" for name, rules in settings.per_file_ignores]
    return "\n".join([*lines, *targets_toml(settings.targets, section="")]) + "\n"


def targets_toml(targets: Iterable[TargetSettings], *, section: str) -> Iterator[str]:
    """Lines of an array of tables, each after a blank line; only what differs from the defaults."""
    for target in targets:
        yield ""
        yield f"[[{section}targets]]"
        if target.name != default_name(target.entry):
            yield f"name = {_value(target.name)}"
        yield f"entry = {_value(target.entry)}"
        if target.mode is not None:
            yield f"mode = {_value(target.mode)}"
        if target.inputs:
            yield f"inputs = {_value(target.inputs)}"
        for one in fields(Budgets):
            value = getattr(target.budgets, one.name)
            if value != one.default:
                yield f"{one.name} = {_value(value)}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return _string(str(value))


def _string(text: str) -> str:
    """A basic string; whatever is not printable is written as an escape of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # TOML has no lone surrogates
        return "\\\\u" + f"{code:04x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
