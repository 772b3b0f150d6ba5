"""The typed settings of a project, parsed from a TOML table. Errors name the key in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from graphdoctor.check.baseline import FILE_NAME
from graphdoctor.values.check import FailOn
from graphdoctor.values.errors import UsageError
from graphdoctor.values.finding import Finding
from graphdoctor.values.options import DeviceChoice, InputsChoice, ValuesChoice
from graphdoctor.values.report import Mode
from graphdoctor.values.spelling import meant, nearest

_LARGEST = 1e12
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0, le=_LARGEST)]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one target. `min_speedup` counts only where a GPU measured it."""

    max_syncs: Count | None = None
    max_launches: Count | None = None
    max_graphs: Count | None = None
    min_coverage: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_speedup: Number | None = None
    min_change_us: Number = 10.0  # a speed-up that misses its limit by less than this is let pass


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One thing to check. `entry` is what `graphdoctor analyze` takes, relative to the project.

    `input`, `inputs` and `ranks` are its options `--input`, `--inputs` and `--ranks`.
    """

    name: Text
    entry: Text
    input: tuple[str, ...] = ()
    mode: Mode | None = None
    budgets: Budgets = field(default_factory=Budgets)
    inputs: InputsChoice = "vary"
    ranks: Annotated[int, Meta(ge=1)] = 1

    @property
    def file(self) -> str:
        """The path of its file, or "" where the entry names a module."""
        where, colon, _ = self.entry.rpartition(":")
        path = where if colon and not self.entry.endswith(".py") else self.entry
        return path if path.endswith(".py") else ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `[tool.graphdoctor]` may say. `time_limit` is in seconds; `jobs` 0 means one a core."""

    targets: tuple[TargetSettings, ...] = ()
    select: tuple[str, ...] = ("GD",)
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fail_on: FailOn = "warning"
    allow_stale: bool = False
    baseline: Text = FILE_NAME
    device: DeviceChoice = "emulated"
    gpu: Text = "h100"
    host: str = ""
    iterations: Annotated[int, Meta(ge=2)] = 4
    values: ValuesChoice = "auto"
    time_limit: Annotated[float, Meta(gt=0, le=_LARGEST)] = 300.0
    jobs: Count = 0
    exclude: tuple[str, ...] = ()

    def left_out_by(self, finding: Finding, path: str) -> str:
        """Which setting leaves a finding in that file out, or "" where none does."""
        if not _matches(finding, self.select):
            return "select"
        if _matches(finding, self.ignore):
            return "ignore"
        for pattern, rules in self.per_file_ignores:
            if fnmatch(path, pattern) and _matches(finding, rules):
                return "per-file-ignores"
        return ""


def _matches(finding: Finding, selectors: Iterable[str]) -> bool:
    return any(finding.rule.startswith(one) or finding.name == one for one in selectors)


def default_name(entry: str) -> str:
    """What a target is called that was given no name: models/decoder of models/decoder.py."""
    return entry.replace(".py:", ":").removesuffix(".py")


def root_relative(path: Path, root: Path) -> str:
    """A path of the command line as the settings write it."""
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError:
        return path.resolve().as_posix()


def parse(table: Mapping[str, object], *, where: str) -> Settings:
    """Settings from a table; `where` is the file's name. Raises UsageError."""
    values = _values(table, _types(Settings), where)
    names = [target.name for target in values.get("targets", ())]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{where} has two targets named {twice[0]!r}; give each its own `name`")
    return Settings(**values)


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _values(table: Mapping[str, object], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Each value read by its key; `max_syncs` and `max-syncs` are one key."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in types:
            known = [name.replace("_", "-") for name in types]
            close = nearest(key.replace("_", "-"), known)
            raise UsageError(
                f"{where} has an unknown key {key!r}; the nearest known one is {close!r}"
            )
        if name in values:
            raise UsageError(
                f"{where} has {key!r} twice, once with a dash and once with an underscore"
            )
        what = f"{key!r} in {where}"
        read = _READERS.get(name)
        values[name] = read(value, what) if read is not None else _value(value, types[name], what)
    return values


def _value(value: object, kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise _wrong(what, _expected(kind), value, choices=_choices(kind)) from None


def _wrong(what: str, expected: str, value: object, *, choices: Sequence[str] = ()) -> UsageError:
    hint = meant(value, choices) if isinstance(value, str) else ""
    return UsageError(f"{what} must be {expected}, not {value!r}{hint}")


def _choices(kind: Any) -> tuple[str, ...]:
    """The texts that a `Literal` has, in its own order; none of another type."""
    literals = [one for one in (kind, *get_args(kind)) if get_origin(one) is Literal]
    return get_args(literals[0]) if literals else ()


def _expected(kind: Any) -> str:
    """What a value of this type is, for a person."""
    from msgspec import inspect

    if choices := _choices(kind):
        return f"one of {', '.join(choices)}"
    if NoneType in get_args(kind):
        kind = get_args(kind)[0]
    match inspect.type_info(kind):
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least):
            return f"a whole number of at least {least}"
        case inspect.FloatType(gt=0):
            return "a number above 0"
        case inspect.FloatType(ge=low, le=high) if high != _LARGEST:
            return f"a number from {low:g} to {high:g}"
        case inspect.FloatType(ge=low):
            return f"a number of at least {low:g}"
        case inspect.StrType():
            return "a non-empty string"
        case _:
            return "a list of strings"


def _rules(value: object, what: str) -> tuple[str, ...]:
    """Ids, beginnings of ids, or names of rules; each must stand for some rule."""
    from graphdoctor.rules import ALL_RULES

    selectors: tuple[str, ...] = _value(value, tuple[str, ...], what)
    for selector in selectors:
        if not any(rule.id.startswith(selector) or rule.name == selector for rule in ALL_RULES):
            known = [name for rule in ALL_RULES for name in (rule.id, rule.name)]
            close = nearest(selector, known)
            raise UsageError(f"{what} names no rule: {selector!r}; the nearest one is {close!r}")
    return selectors


def _file_rules(value: object, what: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise _wrong(what, "a table of patterns and rules", value)
    return tuple((pattern, _rules(rules, what)) for pattern, rules in sorted(value.items()))


def _targets(value: object, what: str) -> tuple[TargetSettings, ...]:
    """A list of entries, a list of tables with an entry each, or tables under their names."""
    if isinstance(value, dict):
        tables = [
            {"name": name, **one} if isinstance(one, dict) else one for name, one in value.items()
        ]
    elif isinstance(value, list):
        tables = [{"entry": one} if isinstance(one, str) else one for one in value]
    else:
        raise _wrong(what, "a list of targets", value)
    return tuple(_target(one, what) for one in tables)


def _target(table: object, what: str) -> TargetSettings:
    if not isinstance(table, dict):
        raise _wrong(what, "a list of targets", table)
    if isinstance(table.get("inputs"), list) and "input" not in table:
        # What `input` was called before there was `inputs = "fixed"`.
        table = {"input" if key == "inputs" else key: value for key, value in table.items()}
    budgets = _types(Budgets)
    types = {name: kind for name, kind in _types(TargetSettings).items() if name != "budgets"}
    values = _values(table, types | budgets, f"a target of {what}")
    if "entry" not in values:
        named = f" {values['name']!r}" if "name" in values else ""
        raise UsageError(f"a target{named} of {what} has no `entry`, such as 'models/decoder.py'")
    entry = values.pop("entry").replace("\\", "/")
    limits = {name: values.pop(name) for name in budgets if name in values}
    values.setdefault("name", default_name(entry))
    return TargetSettings(entry=entry, budgets=Budgets(**limits), **values)


_READERS = {
    "targets": _targets,
    "select": _rules,
    "ignore": _rules,
    "per_file_ignores": _file_rules,
}
