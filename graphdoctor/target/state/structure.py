"""A nest of lists, tuples, dicts, dataclasses -> its leaves, or a new nest with other leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def map_leaves(value: object, change: Callable[[object], object]) -> object:
    """The same structure with every leaf changed; containers are new, so that none is shared."""
    if isinstance(value, PackedSequence):
        # Its other members describe the order of the sequences and must fit the data as they are.
        return value._replace(data=change(value.data))  # type: ignore[arg-type]
    if isinstance(value, dict):
        return _mapped_dict(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        rebuild: Any = type(value)
        return rebuild(*(map_leaves(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        kind: Any = type(value)
        return kind(map_leaves(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapped_dataclass(value, change)
    return change(value)


def _mapped_dict(value: dict[object, object], change: Callable[[object], object]) -> object:
    mapped = copy.copy(value)
    for key, item in value.items():
        mapped[key] = map_leaves(item, change)
    return mapped


def _mapped_dataclass(value: object, change: Callable[[object], object]) -> object:
    mapped = copy.copy(value)
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        if hasattr(value, field.name):
            changed = map_leaves(getattr(value, field.name), change)
            object.__setattr__(mapped, field.name, changed)  # frozen ones too
    return mapped


def leaves(value: object) -> Iterator[object]:
    """The leaves in order."""
    found: list[object] = []

    def note(leaf: object) -> object:
        found.append(leaf)
        return leaf

    map_leaves(value, note)
    return iter(found)
