"""Write settings and targets as TOML that `settings.parse` reads back as the same settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

import tomlkit

from graphdoctor.check.settings.settings import Budgets, Settings, TargetSettings, default_name

_FAIL_ON = "new findings of this severity, or worse, fail the check"


def settings_toml(settings: Settings) -> str:
    """Every setting, defaults too."""
    values = {
        one.name.replace("_", "-"): _plain(getattr(settings, one.name)) for one in fields(Settings)
    }
    rules = {pattern: _plain(names) for pattern, names in settings.per_file_ignores}
    del values["per-file-ignores"]
    tables = {"per-file-ignores": rules, "targets": [*map(_target, settings.targets)]}
    return _text(values | {name: table for name, table in tables.items() if table})


def first_settings_toml(targets: Iterable[TargetSettings], *, is_shared: bool) -> str:
    """The settings that a project starts with; `is_shared`: for a file that has those of others too."""
    section = tomlkit.item({"fail-on": "warning", "targets": [*map(_target, targets)]})
    section["fail-on"].comment(_FAIL_ON)
    return _text({"tool": {"graphdoctor": section}} if is_shared else section)


def _target(target: TargetSettings) -> dict[str, object]:
    """Only what differs from the defaults."""
    values: dict[str, object] = {
        "name": target.name if target.name != default_name(target.entry) else None,
        "entry": target.entry,
        "mode": target.mode,
        "input": target.input or None,
        "inputs": target.inputs if target.inputs != "vary" else None,
    }
    for one in fields(Budgets):
        value = getattr(target.budgets, one.name)
        values[one.name] = value if value != one.default else None
    return {
        key.replace("_", "-"): _plain(value) for key, value in values.items() if value is not None
    }


def _plain(value: object) -> object:
    """A value as TOML has it: 300 for 300.0, and no lone surrogates in a text."""
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(table: Mapping[str, object]) -> str:
    """All texts in it are basic strings, where what is not printable can be an escape of TOML."""
    text = tomlkit.dumps(table)
    return "".join(
        char if char.isprintable() or char == "\n" else f"\\U{ord(char):08x}" for char in text
    )
