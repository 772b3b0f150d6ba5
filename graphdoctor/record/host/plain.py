"""A value of the running program -> whether no code of the user's runs when it is printed, compared or iterated."""

from __future__ import annotations

import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.plain import SCALARS
from graphdoctor.target.user_code import is_user_file

_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MOST, _DEPTH = 200, 4
# A module is moved by its methods float() and cpu(), and shows itself by its submodules' own.
_NEVER = (Iterator, defaultdict, partial, torch.nn.Module)
_ONLY_SHOW_THEMSELVES = (ModuleType, FunctionType, BuiltinFunctionType)


def is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """What an iterator gives is gone afterwards, and a `defaultdict` grows when it is asked: neither is plain."""
    kind = type(value)
    if kind in SCALARS or issubclass(kind, _ONLY_SHOW_THEMSELVES):
        return True
    if kind in _MAPPINGS or kind in _SEQUENCES:
        if depth == 0 or len(value) > _MOST:
            return False
        held = [*value.keys(), *value.values()] if kind in _MAPPINGS else list(value)
        return all(is_plain(each, depth - 1) for each in held)
    if isinstance(value, type):
        return kind is type or not is_of_user(value)
    if issubclass(kind, enum.Enum):
        return not any(name.startswith("__") for name in _own_functions(kind))
    if issubclass(kind, _NEVER) or is_of_user(value):
        return False
    return not any(map(is_of_user, attributes(value).values()))


def is_of_user(value: Any) -> bool:
    """Whether the user wrote it: a function, or the class of an object or one that it inherits from."""
    while isinstance(value, (partial, MethodType)):
        value = value.func if isinstance(value, partial) else value.__func__
    if isinstance(value, FunctionType):
        return is_user_file(value.__code__.co_filename)  # functools.wraps() names another module
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    return any(_is_in_users_module(str(kind.__module__)) for kind in kinds)


def _is_in_users_module(name: str) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return False
    if name.startswith("_cython_"):  # of its functions, which are no module's
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_user_file(file) if file is not None else name != "builtins"


def has_own_access(value: object, name: str) -> bool:
    """Whether reading that attribute is more than a look into the object's `__dict__`."""
    for kind in type(value).__mro__[:-1]:
        own = vars(kind)
        readers = (own.get("__getattribute__"), own.get("__getattr__"))
        if any(is_of_user(one) for one in readers if one is not None):
            return True
        if hasattr(type(own.get(name)), "__set__"):
            return not isinstance(value, (ModuleType, type))
    return False


def _own_functions(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        for name, held in vars(base).items():
            if isinstance(held, FunctionType) and is_user_file(held.__code__.co_filename):
                yield name
