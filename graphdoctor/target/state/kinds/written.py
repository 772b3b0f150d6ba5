"""What code writes into, put back in place: a namespace, a dictionary, attributes and slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

from graphdoctor.target.state.attributes import slots, slots_of
from graphdoctor.target.state.kinds.kind import Restore

MISSING = object()


def dict_of(cls: type) -> type[dict[Any, Any]]:
    """The class whose methods are called, past any override of a subclass, which may be user code, or raise."""
    return OrderedDict if issubclass(cls, OrderedDict) else dict


def dict_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Items in order."""
    return list(dict_of(type(value)).items(value))


def put_items(held: dict[Any, Any], items: Sequence[tuple[Any, Any]]) -> None:
    """Keys, values and their order. Writes only when something differs."""
    if not items and not dict.__len__(held):  # as a dozen of each module's
        return
    kind = dict_of(type(held))
    if len(items) == kind.__len__(held) and all(map(is_, chain(*kind.items(held)), chain(*items))):
        return
    kind.clear(held)
    for key, value in items:
        kind.__setitem__(held, key, value)


def saved_dict(held: dict[Any, Any]) -> Restore:
    return partial(put_items, held, dict_items(held))


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


def saved_slots(held: object) -> Restore:
    """The slots of an object, unset ones included; also of a frozen dataclass."""
    values = dict(slots_of(held))

    def restore() -> None:
        for name, slot in slots(held).items():
            if name in values:
                slot.__set__(held, values[name])
            else:
                with suppress(AttributeError):
                    slot.__delete__(held)

    return restore
