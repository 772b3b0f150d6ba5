"""Reads the limits of a test from the marker `graph_safe`, or raises an error that names the test."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from graphdoctor.check.settings.settings import Budgets, TargetSettings, parse
from graphdoctor.pytest_plugin import MARKER
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Mode
from graphdoctor.values.spelling import nearest

_RULES = ("allow", "expect")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a test allows: rules (ids, beginnings of ids, names), budgets, and which step it means.

    What it expects is allowed too, and has to be found. `ranks` run the step together.
    """

    allow: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    budgets: Budgets = field(default_factory=Budgets)
    mode: Mode | None = None
    ranks: int = 1


def check_markers(item: pytest.Item, *, fixture: str) -> None:
    """Raise UsageError for a marker that cannot be carried out; without a marker, all is well."""
    limits_of(item)
    if item.get_closest_marker(MARKER) and fixture not in getattr(item, "fixturenames", ()):
        raise UsageError(
            f"{item.nodeid} is marked {MARKER} and lacks the argument `{fixture}`: write"
            f" def {item.name.partition('[')[0]}({fixture}) and call {fixture}.check(model, *inputs)"
        )


def limits_of(item: pytest.Item) -> Limits:
    """The limits that its markers give; without a marker, none. Raises UsageError.

    Of a class's marker, a test's and a parameter's, the nearest one decides on each argument.
    """
    where = f"the marker {MARKER} of {item.nodeid}"
    given: dict[str, object] = {}
    for marker in reversed([*item.iter_markers(MARKER)]):
        if marker.args:
            raise UsageError(f"{where} takes its limits by name, such as min_coverage=0.9")
        given |= marker.kwargs
    if not given:
        return Limits()
    _check_names(given, where)
    rules = {name: _selectors(given.pop(name, ())) for name in _RULES}
    for name, selectors in rules.items():
        parse({"ignore": selectors}, where=f"{name}= of {where}")
    budgets = {name: value for name, value in given.items() if value is not None}
    settings = parse({"targets": [{"entry": "test.py", **budgets}]}, where=where)
    target: TargetSettings = settings.targets[0]
    allow, expect = (tuple(rules[name]) for name in _RULES)
    return Limits(allow, expect, target.budgets, target.mode, target.ranks)


def _selectors(given: Any) -> list[Any]:
    return [given] if isinstance(given, str) else list(given)


def _check_names(given: dict[str, object], where: str) -> None:
    """A target of the settings has more keys than a marker."""
    for name in ("entry", "name", "inputs", "input"):
        if name in given:
            raise UsageError(f"{where} has no {name!r}: check() is given the model and its inputs")
    known = (*_RULES, "mode", "ranks", *(one.name for one in fields(Budgets)))
    for name in given:
        if name not in known:
            close = nearest(name, known)
            raise UsageError(
                f"{where} has an unknown argument {name!r}; the nearest known one is {close!r}"
            )
    for name in _RULES:
        if not isinstance(given.get(name, ()), (str, list, tuple, set, frozenset)):
            raise UsageError(
                f"{name}= of {where} must be a rule's id or a list of them, not {given[name]!r}"
            )
