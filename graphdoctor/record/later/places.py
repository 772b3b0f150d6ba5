"""Write a value where a path of the state leads."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from contextvars import Context, ContextVar
from itertools import islice
from types import CellType, FunctionType
from typing import Any

from graphdoctor.target.state.attributes import attributes, has_walkable_state, slot_descriptors
from graphdoctor.target.state.paths import By, StatePath
from graphdoctor.target.state.variables import global_names, names_in

_MISSING = object()


def put_at(holder: Any, path: StatePath, value: object) -> None:
    """Write past any override, and only where there is such a value already. `holder` holds it."""
    name: Any = path.name
    if isinstance(holder, FunctionType):
        _put_variable(holder, path.own_name, value)
    elif isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, ContextVar):
        holder.set(value)
    elif isinstance(holder, Context):
        for variable in holder:
            if variable.name == name:
                holder.run(variable.set, value)
    elif isinstance(holder, dict):
        key = _key_in(holder, path)
        if key is not _MISSING:
            dict.__setitem__(holder, key, value)
    elif isinstance(holder, (list, deque)) and path.by is By.ITEM:
        with suppress(IndexError):
            kind: Any = list if isinstance(holder, list) else deque
            kind.__setitem__(holder, name, value)
    elif isinstance(holder, type):
        if name in vars(holder):
            type.__setattr__(holder, name, value)
    elif name in (own := attributes(holder)):
        own[name] = value
    elif has_walkable_state(holder):
        for slot, descriptor in slot_descriptors(type(holder)):
            if slot == name:
                descriptor.__set__(holder, value)


def _key_in(held: dict[Any, Any], path: StatePath) -> object:
    """The key of a dictionary's value. A key that is an object is found by its place."""
    name: Any = path.name
    if path.by is By.OBJECT:
        return next(islice(held, name, None), _MISSING) if isinstance(name, int) else _MISSING
    return name if name in held else _MISSING


def _put_variable(function: FunctionType, name: str, value: object) -> None:
    if name in names_in(function):
        cells = dict(zip(names_in(function), function.__closure__ or (), strict=True))
        cells[name].cell_contents = value
    elif name in vars(function):
        vars(function)[name] = value
    else:
        for namespace, names in global_names(function):
            if name in names and name in namespace:
                namespace[name] = value
                return
