"""A table of settings, as TOML gives it -> typed settings, or one clear sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar, get_args

from graphdoctor.check.baseline import FILE_NAME
from graphdoctor.values.check import FailOn
from graphdoctor.values.errors import UsageError
from graphdoctor.values.options import DeviceChoice
from graphdoctor.values.report import Finding, Mode
from graphdoctor.values.spelling import nearest

_T = TypeVar("_T")
_Reader = Callable[[object, str], Any]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits of one target. `min_speedup` counts only where a GPU measured it."""

    max_syncs: int | None = None
    max_launches: int | None = None
    max_graphs: int | None = None
    min_coverage: float | None = None
    min_speedup: float | None = None
    min_change_us: float = 10.0  # a speed-up that misses its limit by less than this is let pass


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One thing to check. `entry` is what `graphdoctor analyze` takes, relative to the project."""

    name: str
    entry: str
    inputs: tuple[str, ...] = ()
    mode: Mode | None = None
    budgets: Budgets = field(default_factory=Budgets)

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
    baseline: str = FILE_NAME
    device: DeviceChoice = "emulated"
    gpu: str = "h100"
    iterations: int = 4
    time_limit: float = 300.0
    jobs: int = 0
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


def parse(table: Mapping[str, object], *, where: str) -> Settings:
    """Settings from a table; `where` is the file's name. Raises UsageError."""
    values = _values(table, _SETTINGS, where)
    names = [target.name for target in values.get("targets", ())]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"{where} has two targets of the name {twice[0]!r}; give each a `name` of its own"
        )
    return Settings(**values)


def _matches(finding: Finding, selectors: Iterable[str]) -> bool:
    return any(finding.rule.startswith(one) or finding.name == one for one in selectors)


def _values(
    table: Mapping[str, object], readers: Mapping[str, _Reader], where: str
) -> dict[str, Any]:
    """Each value read by its key; `max_syncs` and `max-syncs` are one key."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in readers:
            raise UsageError(_unknown(key, readers, where))
        if name in values:
            raise UsageError(f"{where} has {key!r} twice, once with a dash and once with a _")
        values[name] = readers[name](value, f"{key!r} in {where}")
    return values


def _unknown(key: str, known: Iterable[str], where: str) -> str:
    spelled = [name.replace("_", "-") for name in known]
    close = nearest(key.replace("_", "-"), spelled)
    return f"{where} has an unknown key {key!r}; the nearest known one is {close!r}"


def _wrong(what: str, expected: str, value: object) -> UsageError:
    return UsageError(f"{what} must be {expected}, not {value!r}")


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(what, "a text", value)
    return value


def _texts(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(what, "a list of texts", value)
    return tuple(value)


def _yes_or_no(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(what, "true or false", value)
    return value


def _count(least: int) -> _Reader:
    def read(value: object, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _wrong(what, f"a whole number of at least {least}", value)
        return value

    return read


def _number(low: float, high: float, *, above: bool = False) -> _Reader:
    def read(value: object, what: str) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above and value == low):  # type: ignore[operator]
            bounds = f"from {low:g} to {high:g}" if high < _LARGEST else f"of at least {low:g}"
            raise _wrong(what, f"a number {'above 0' if above else bounds}", value)
        return float(value)  # type: ignore[arg-type]

    return read


def _one_of(choices: tuple[_T, ...]) -> _Reader:
    def read(value: object, what: str) -> _T:
        if value not in choices:
            raise _wrong(what, f"one of {', '.join(map(str, choices))}", value)
        return choices[choices.index(value)]

    return read


def _rules(value: object, what: str) -> tuple[str, ...]:
    """Ids, beginnings of ids, or names of rules; each must stand for some rule."""
    from graphdoctor.rules import ALL_RULES

    selectors = _texts(value, what)
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
        return tuple(
            _target({"name": name, **_table(one, what)}, what) for name, one in value.items()
        )
    if not isinstance(value, list):
        raise _wrong(what, "a list of targets", value)
    return tuple(
        _target({"entry": one} if isinstance(one, str) else _table(one, what), what)
        for one in value
    )


def _table(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(what, "a list of targets", value)
    return value


def _target(table: dict[str, object], what: str) -> TargetSettings:
    values = _values(table, _TARGET, f"a target of {what}")
    if "entry" not in values:
        named = f" {values['name']!r}" if "name" in values else ""
        raise UsageError(f"a target{named} of {what} has no `entry`, such as 'models/decoder.py'")
    entry = values.pop("entry").replace("\\", "/")
    limits = {one.name: values.pop(one.name) for one in fields(Budgets) if one.name in values}
    values.setdefault("name", default_name(entry))
    return TargetSettings(entry=entry, budgets=Budgets(**limits), **values)


def default_name(entry: str) -> str:
    """What a target is called that was given no name: models/decoder of models/decoder.py."""
    return entry.replace(".py:", ":").removesuffix(".py")


def root_relative(path: Path, root: Path) -> str:
    """A path of the command line as the settings write it."""
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError:
        return path.resolve().as_posix()


_LARGEST = 1e12
_TARGET: dict[str, _Reader] = {
    "name": _text,
    "entry": _text,
    "inputs": _texts,
    "mode": _one_of(get_args(Mode)),
    "max_syncs": _count(0),
    "max_launches": _count(0),
    "max_graphs": _count(0),
    "min_coverage": _number(0, 1),
    "min_speedup": _number(0, _LARGEST),
    "min_change_us": _number(0, _LARGEST),
}
_SETTINGS: dict[str, _Reader] = {
    "targets": _targets,
    "select": _rules,
    "ignore": _rules,
    "per_file_ignores": _file_rules,
    "fail_on": _one_of(get_args(FailOn)),
    "allow_stale": _yes_or_no,
    "baseline": _text,
    "device": _one_of(get_args(DeviceChoice)),
    "gpu": _text,
    "iterations": _count(2),
    "time_limit": _number(0, _LARGEST, above=True),
    "jobs": _count(0),
    "exclude": _texts,
}
