"""An object -> the classes by which it does what it does, and the dictionaries of their members."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from types import MappingProxyType
from typing import Any

# What Python writes into a class by itself: for copies, of annotations that somebody asked for, for abstract classes.
_OF_PYTHON = frozenset(
    {"__slotnames__", "__annotations__", "__annotations_cache__", "__annotate_func__"}
    | {"__doc__", "_abc_impl", "__abstractmethods__", "__match_args__"}
)
_IN_C = frozenset({"builtins", "_thread", "collections", "_collections", "typing", "abc", "enum"})


@cache
def watched_classes(kind: type) -> tuple[type, ...]:
    """A class and its bases, without those that nobody can write to."""
    return tuple(cls for cls in kind.__mro__ if cls.__module__ not in _IN_C)


def members_of(cls: type) -> dict[str, Any] | None:
    """The dictionary itself behind `vars(cls)`, to be read only: its version tells of every write."""
    proxy = vars(cls)
    if not isinstance(proxy, MappingProxyType):
        return None
    found = gc.get_referents(proxy)
    return found[0] if len(found) == 1 and type(found[0]) is dict else None


def names_in(members: dict[str, Any]) -> Iterator[str]:
    """Those that code may have written."""
    return (name for name in members if name not in _OF_PYTHON)
