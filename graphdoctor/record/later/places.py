"""Where a path of the state leads, and a value -> the value is there."""

from __future__ import annotations

import ast
from collections import deque
from contextlib import suppress
from contextvars import Context, ContextVar
from itertools import islice
from types import CellType, FunctionType
from typing import Any

from graphdoctor.target.state.attributes import attributes, has_walkable_state, slot_descriptors
from graphdoctor.target.state.variables import global_names, names_in

_MISSING = object()


def put_at(holder: Any, path: str, value: object) -> None:
    """Write past any override, and only where there is such a value already."""
    name = path.rpartition(".")[2]
    if isinstance(holder, FunctionType):
        _put_variable(holder, name, value)
    elif isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, ContextVar):
        holder.set(value)
    elif isinstance(holder, Context):
        for variable in holder:
            if path.endswith(f"[{variable.name}]"):
                holder.run(variable.set, value)
    elif isinstance(holder, dict):
        key = _key_in(holder, path)
        if key is not _MISSING:
            dict.__setitem__(holder, key, value)
    elif isinstance(holder, (list, deque)) and path.endswith("]"):
        with suppress(ValueError, IndexError):
            index = int(path.rpartition("[")[2][:-1])
            kind: Any = list if isinstance(holder, list) else deque
            kind.__setitem__(holder, index, value)
    elif isinstance(holder, type):
        if name in vars(holder):
            type.__setattr__(holder, name, value)
    elif name in (own := attributes(holder)):
        own[name] = value
    elif has_walkable_state(holder):
        for slot, descriptor in slot_descriptors(type(holder)):
            if slot == name:
                descriptor.__set__(holder, value)


def _key_in(held: dict[Any, Any], path: str) -> object:
    """The key of a dictionary's value: a word, a number, or by its place where it is an object."""
    word = path.rpartition(".")[2]
    if not path.endswith("]"):
        return word if word in held else _MISSING
    with suppress(ValueError, SyntaxError):
        key = ast.literal_eval(path.rpartition("[")[2][:-1])
        if key in held:
            return key
        if isinstance(key, int) and 0 <= key < len(held):
            return next(islice(held, key, None))
    return _MISSING


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
