"""The marker `graph_safe` -> the limits of a test, or a usage error that names the test."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from graphdoctor.check.settings.settings import Budgets, TargetSettings, parse
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class Limits:
    """What a test allows: rules (ids, beginnings of ids, names), budgets, and which step it means."""

    allow: tuple[str, ...] = ()
    budgets: Budgets = field(default_factory=Budgets)
    mode: Mode | None = None


def check_marker(marker: pytest.Mark, item: pytest.Item, *, fixture: str) -> None:
    """Raise pytest.UsageError for a marker that cannot be carried out."""
    try:
        limits_of(marker, item.nodeid)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    if fixture not in getattr(item, "fixturenames", ()):
        raise pytest.UsageError(
            f"{item.nodeid} is marked {marker.name} and lacks the argument `{fixture}`: write"
            f" def {item.name.partition('[')[0]}({fixture}) and call {fixture}.check(model, *inputs)"
        )


def limits_of(marker: pytest.Mark | None, nodeid: str) -> Limits:
    """The limits that a marker gives; without a marker, none. Raises UsageError."""
    if marker is None:
        return Limits()
    where = f"the marker {marker.name} of {nodeid}"
    if marker.args:
        raise UsageError(f"{where} takes its limits by name, such as min_coverage=0.9")
    given = dict(marker.kwargs)
    allow = given.pop("allow", ())
    allow = [allow] if isinstance(allow, str) else list(allow)
    _check_names(given, where)
    budgets = {name: value for name, value in given.items() if value is not None}
    table = {"ignore": allow, "targets": [{"entry": "test.py", **budgets}]}
    settings = parse(table, where=where)
    target: TargetSettings = settings.targets[0]
    return Limits(settings.ignore, target.budgets, target.mode)


def _check_names(given: dict[str, object], where: str) -> None:
    """A target of the settings has more keys than a marker."""
    for name in ("entry", "name", "inputs"):
        if name in given:
            raise UsageError(f"{where} has no {name!r}: check() is given the model and its inputs")
