"""A container or an object of Python -> what it holds, saved to be put back in place."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, deque
from contextvars import ContextVar
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

import torch

from graphdoctor.target.state.attributes import slot_descriptors
from graphdoctor.target.state.walk import dict_items

_MISSING = object()


class SavedDict:
    """Keys, values and their order. Writes only when something differs, and past any override."""

    def __init__(self, held: dict[Any, Any]) -> None:
        self._held = held
        self._items = dict_items(held)

    def restore(self) -> None:
        if _same_pairs(dict_items(self._held), self._items):
            return
        kind = OrderedDict if isinstance(self._held, OrderedDict) else dict
        kind.clear(self._held)
        for key, value in self._items:
            kind.__setitem__(self._held, key, value)


def _same_pairs(now: list[tuple[object, object]], then: list[tuple[object, object]]) -> bool:
    return len(now) == len(then) and all(
        key is old_key and value is old_value
        for (key, value), (old_key, old_value) in zip(now, then, strict=True)
    )


class SavedList:
    def __init__(self, held: list[object]) -> None:
        self._held = held
        self._items = list(held)

    def restore(self) -> None:
        list.__setitem__(self._held, slice(None), self._items)


class SavedDeque:
    def __init__(self, held: deque[object]) -> None:
        self._held = held
        self._items = list(held)

    def restore(self) -> None:
        deque.clear(self._held)
        deque.extend(self._held, self._items)


class SavedSet:
    def __init__(self, held: set[object]) -> None:
        self._held = held
        self._items = set(held)

    def restore(self) -> None:
        if self._held != self._items:
            set.clear(self._held)
            set.update(self._held, self._items)


class SavedBytes:
    def __init__(self, held: bytearray) -> None:
        self._held = held
        self._copy = bytes(held)

    def restore(self) -> None:
        self._held[:] = self._copy


class SavedSlots:
    """The `__slots__` of an object, unset ones included; also of a frozen dataclass."""

    def __init__(self, held: object) -> None:
        self._held = held
        self._slots = [
            (slot, slot.__get__(held, type(held)) if _is_set(slot, held) else _MISSING)
            for _, slot in slot_descriptors(type(held))
        ]

    def restore(self) -> None:
        for slot, value in self._slots:
            if value is not _MISSING:
                slot.__set__(self._held, value)
            elif _is_set(slot, self._held):
                slot.__delete__(self._held)


def _is_set(slot: MemberDescriptorType, held: object) -> bool:
    try:
        slot.__get__(held, type(held))
    except AttributeError:
        return False
    return True


class SavedCell:
    """A closure's variable."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell
        self._value = _contents(cell)

    def restore(self) -> None:
        if self._value is _MISSING:
            if _contents(self._cell) is not _MISSING:
                del self._cell.cell_contents
        else:
            self._cell.cell_contents = self._value


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


class SavedContext:
    """What a context variable is in the context that the analysis runs in."""

    def __init__(self, variable: ContextVar[object]) -> None:
        self._variable = variable
        self._value = variable.get(_MISSING)

    def restore(self) -> None:
        if self._value is not _MISSING and self._variable.get(_MISSING) is not self._value:
            self._variable.set(self._value)


class SavedNames:
    """The globals that a function mentions, whether they exist yet or not."""

    def __init__(self, namespace: dict[str, object], names: tuple[str, ...]) -> None:
        self._namespace = namespace
        self._values = {name: namespace.get(name, _MISSING) for name in names}

    def restore(self) -> None:
        for name, value in self._values.items():
            if value is _MISSING:
                self._namespace.pop(name, None)
            elif self._namespace.get(name, _MISSING) is not value:
                self._namespace[name] = value


class SavedDefaults:
    """A function's default values, which may be rebound."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._defaults = function.__defaults__
        self._kwdefaults = function.__kwdefaults__

    def restore(self) -> None:
        self._function.__defaults__ = self._defaults
        self._function.__kwdefaults__ = self._kwdefaults


class SavedClass:
    """The attributes of a class of the user's, such as a counter kept on the class."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._members = {n: v for n, v in vars(cls).items() if _is_plain_name(n)}

    def restore(self) -> None:
        for name in [n for n in vars(self._cls) if _is_plain_name(n) and n not in self._members]:
            type.__delattr__(self._cls, name)
        for name, value in self._members.items():
            if vars(self._cls).get(name, _MISSING) is not value:
                type.__setattr__(self._cls, name, value)


def _is_plain_name(name: str) -> bool:
    return not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl"


class SavedRandom:
    """A generator of random numbers that the user owns: Python's, NumPy's or torch's."""

    def __init__(self, generator: object) -> None:
        self._generator = generator
        if isinstance(generator, random.Random):
            self._state: object = generator.getstate()
        elif isinstance(generator, torch.Generator):
            self._state = generator.get_state()
        else:
            self._state = copy.deepcopy(generator.bit_generator.state)  # type: ignore[attr-defined]

    def restore(self) -> None:
        if isinstance(self._generator, random.Random):
            self._generator.setstate(self._state)  # type: ignore[arg-type]
        elif isinstance(self._generator, torch.Generator):
            self._generator.set_state(self._state)  # type: ignore[arg-type]
        else:
            self._generator.bit_generator.state = self._state  # type: ignore[attr-defined]


class SavedArray:
    """A NumPy array's values."""

    def __init__(self, array: object) -> None:
        self._array = array
        self._copy = array.copy()  # type: ignore[attr-defined]

    def restore(self) -> None:
        if self._array.flags.writeable:  # type: ignore[attr-defined]
            self._array[...] = self._copy  # type: ignore[index]
