"""A namespace or a dictionary that code writes into: saved, to be put back in place."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

from graphdoctor.target.state.kinds.kind import Restore

MISSING = object()


def dict_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Items in order, past any override: a subclass's items() may be user code, or raise."""
    return list(OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value))


def saved_dict(held: dict[Any, Any]) -> Restore:
    """Keys, values and their order. Writes only when something differs, and past any override."""
    kind = OrderedDict if isinstance(held, OrderedDict) else dict
    items = dict_items(held)
    if not items:  # a module has a dozen of these for hooks
        return partial(_empty, kind, held)

    def restore() -> None:
        if _same_pairs(dict_items(held), items):
            return
        kind.clear(held)
        for key, value in items:
            kind.__setitem__(held, key, value)

    return restore


def _empty(kind: type[dict[Any, Any]], held: dict[Any, Any]) -> None:
    if kind.__len__(held):
        kind.clear(held)


def _same_pairs(now: list[tuple[object, object]], then: list[tuple[object, object]]) -> bool:
    return len(now) == len(then) and all(map(is_, chain(*now), chain(*then)))


def saved_names(namespace: dict[str, object], names: tuple[str, ...]) -> Restore:
    """Some names of a namespace, whether they exist yet or not."""
    values = {name: namespace.get(name, MISSING) for name in names}

    def restore() -> None:
        for name, value in values.items():
            if value is MISSING:
                namespace.pop(name, None)
            elif namespace.get(name, MISSING) is not value:
                namespace[name] = value

    return restore
