"""Write settings and targets as TOML that `settings.parse` reads back, and the JSON schema of settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import msgspec
import tomlkit

from graphdoctor.check.settings.files import SHARED_FILE
from graphdoctor.check.settings.settings import Budgets, Settings, TargetSettings, default_name
from graphdoctor.rules import ALL_RULES

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


_DIALECT = "http://json-schema.org/draft-07/schema#"  # which editors of TOML know

_ABOUT = {
    "targets": "What is checked: entries, tables with an `entry` each, or tables under their names.",
    "select": "Only findings of these rules count: ids, beginnings of ids, or names.",
    "ignore": "Findings of these rules do not count.",
    "per_file_ignores": "By a pattern of paths, rules whose findings do not count in these files.",
    "fail_on": "A new finding of this severity, or worse, fails the check.",
    "allow_stale": "Entries of the baseline that no longer occur fail no check.",
    "baseline": "The file of accepted findings and figures.",
    "device": "Where the steps run: emulated needs no GPU.",
    "gpu": "The GPU that is predicted for, by its name or by the file of a profile.",
    "host": "The host that feeds the GPU: its name, or the file that `graphdoctor calibrate --host` wrote.",
    "iterations": "How many steps are compared with each other.",
    "values": "none runs steps on shapes only; auto does so where memory would not suffice.",
    "time_limit": "Seconds for each target.",
    "jobs": "Targets analyzed at once; 0 means one a core.",
    "exclude": "Patterns of paths in which no targets are looked for.",
    "name": "What the target is called in reports and in the baseline.",
    "entry": "What `graphdoctor analyze` takes: file.py, file.py:name or package.module:name.",
    "input": "Tensors for a module that comes without inputs, such as 8x3x224x224:float16.",
    "mode": "How the step runs; left out, what the target describes.",
    "inputs": "fixed: the inputs as given, and no other values of the same make.",
    "ranks": "How many processes run the step together, each with a device.",
    "max_syncs": "How often a step may make the host wait for the GPU.",
    "max_launches": "How many launches a step may have.",
    "max_graphs": "How many graphs may hold what can be captured.",
    "min_coverage": "The least share of the launches that graphs must be able to hold.",
    "min_speedup": "The least speedup of the graph, if a GPU measured it.",
    "min_change_us": "A speedup that misses its limit by less than this passes.",
}


def settings_schema(file: str) -> dict[str, Any]:
    """For `graphdoctor.toml`, or for the table [tool.graphdoctor] of `pyproject.toml`."""
    table = _table()
    if file == SHARED_FILE:
        graphdoctor = {"type": "object", "properties": {"graphdoctor": table}}
        table = {"type": "object", "properties": {"tool": graphdoctor}}
    return {"$schema": _DIALECT, "title": f"graphdoctor's settings in {file}", **table}


def _table() -> dict[str, Any]:
    settings = _fields(Settings)
    rules = {"type": "array", "items": _rule()}
    settings["select"] |= {"items": _rule()}
    settings["ignore"] |= {"items": _rule()}
    patterns = {"type": "object", "additionalProperties": rules}
    settings["per-file-ignores"] = {"description": _ABOUT["per_file_ignores"], **patterns}
    settings["targets"] = {"description": _ABOUT["targets"], **_targets()}
    return _object(settings)


def _targets() -> dict[str, Any]:
    target = _fields(TargetSettings) | _fields(Budgets)
    del target["budgets"]
    unnamed = {key: value for key, value in target.items() if key != "name"}
    entry = {"type": "string", "minLength": 1}
    listed = {"type": "array", "items": {"anyOf": [entry, _object(target, "entry")]}}
    return {
        "anyOf": [listed, {"type": "object", "additionalProperties": _object(unnamed, "entry")}]
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    needed = {"required": [*required]} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def _fields(cls: type) -> dict[str, Any]:
    """The fields as a settings file spells them, each with what it is about and its default."""
    (found,), components = msgspec.json.schema_components((cls,))
    name = found["$ref"].rpartition("/")[2]
    return {
        key.replace("_", "-"): {"description": _ABOUT.get(key, ""), **_without_null(field)}
        for key, field in components[name]["properties"].items()
    }


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is optional is left out."""
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        field = {key: value for key, value in field.items() if key != "anyOf"} | kinds[0]
    if isinstance(field.get("enum"), list):
        field = {**field, "enum": [one for one in field["enum"] if one is not None]}
    if isinstance(field.get("default"), tuple):
        field = {**field, "default": [*field["default"]]}
    return {key: value for key, value in field.items() if (key, value) != ("default", None)}


def _rule() -> dict[str, Any]:
    """Names to complete, and what is a beginning of an id."""
    known = [name for rule in ALL_RULES for name in (rule.id, rule.name)]
    return {"anyOf": [{"enum": known}, {"type": "string", "pattern": "^G(D[0-9]{0,3})?$"}]}
