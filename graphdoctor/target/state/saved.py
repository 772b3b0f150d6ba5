"""A container or an object of Python -> what it holds, saved: a function that puts it back in place."""

from __future__ import annotations

import copy
import io
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from itertools import chain
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

from graphdoctor.target.state.attributes import slot_descriptors
from graphdoctor.target.state.walk import dict_items

Restore = Callable[[], object]
_MISSING = object()


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


def saved_list(held: list[Any]) -> Restore:
    return partial(list.__setitem__, held, slice(None), list(held))


def saved_deque(held: deque[object]) -> Restore:
    items = list(held)

    def restore() -> None:
        deque.clear(held)
        deque.extend(held, items)

    return restore


def saved_set(held: set[object]) -> Restore:
    items = set(held)

    def restore() -> None:
        if held != items:
            set.clear(held)
            set.update(held, items)

    return restore


def saved_bytes(held: bytearray) -> Restore:
    return partial(held.__setitem__, slice(None), bytes(held))


def saved_stream(held: Any) -> Restore:
    """What a stream in memory holds, and where it stands: as pickle does, past a subclass's methods and newlines."""
    if held.closed:
        return lambda: None
    kind: Any = io.BytesIO if isinstance(held, io.BytesIO) else io.StringIO
    # The last are a subclass's attributes, which are saved as any other's.
    *saved, _ = kind.__getstate__(held)

    def restore() -> None:
        if not held.closed and kind.__getstate__(held)[:-1] != tuple(saved):
            kind.__setstate__(held, (*saved, None))

    return restore


def saved_memory(held: Any) -> Restore:
    """What an array, a number of C or a memory map holds; of a map, not where it has become shorter or longer."""
    if isinstance(held, array):
        return partial(held.__setitem__, slice(None), held[:])
    values = memoryview(held).tobytes()

    def restore() -> None:
        with memoryview(held) as memory:
            if memory.nbytes == len(values) and memory.tobytes() != values:
                memory.cast("B")[:] = values

    return restore


def saved_slots(held: object) -> Restore:
    """The `__slots__` of an object, unset ones included; also of a frozen dataclass."""
    slots = [(slot, _in_slot(slot, held)) for _, slot in slot_descriptors(type(held))]

    def restore() -> None:
        for slot, value in slots:
            if value is not _MISSING:
                slot.__set__(held, value)
            elif _in_slot(slot, held) is not _MISSING:
                slot.__delete__(held)

    return restore


def _in_slot(slot: MemberDescriptorType, held: object) -> object:
    try:
        return slot.__get__(held, type(held))
    except AttributeError:
        return _MISSING


def saved_cell(cell: CellType) -> Restore:
    """A closure's variable."""
    value = _contents(cell)

    def restore() -> None:
        if value is not _MISSING:
            cell.cell_contents = value
        elif _contents(cell) is not _MISSING:
            del cell.cell_contents

    return restore


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def saved_context(variable: ContextVar[object]) -> Restore:
    """What a context variable is in the context that the analysis runs in; one that was not set gets its default."""
    value = in_context(variable)

    def restore() -> None:
        if value is not _MISSING and in_context(variable) is not value:
            variable.set(value)

    return restore


def saved_variables(context: Context) -> Restore:
    """What variables are in a context that is held; one that is being run is left alone."""
    values = list(context.items())

    def restore() -> None:
        for variable, value in values:
            if context[variable] is not value:
                with suppress(RuntimeError):
                    context.run(variable.set, value)

    return restore


def in_context(variable: ContextVar[object]) -> object:
    """What reading it gives: its default, where nobody has set it."""
    try:
        return variable.get()
    except LookupError:
        return _MISSING


def saved_names(namespace: dict[str, object], names: tuple[str, ...]) -> Restore:
    """The globals that a function mentions, whether they exist yet or not."""
    values = {name: namespace.get(name, _MISSING) for name in names}

    def restore() -> None:
        for name, value in values.items():
            if value is _MISSING:
                namespace.pop(name, None)
            elif namespace.get(name, _MISSING) is not value:
                namespace[name] = value

    return restore


def saved_defaults(function: FunctionType) -> Restore:
    """A function's default values, which may be rebound."""
    defaults, kwdefaults = function.__defaults__, function.__kwdefaults__

    def restore() -> None:
        function.__defaults__, function.__kwdefaults__ = defaults, kwdefaults

    return restore


def saved_class(cls: type) -> Restore:
    """The attributes of a class of the user's, such as a counter kept on the class."""
    members = {n: v for n, v in vars(cls).items() if _is_plain_name(n)}

    def restore() -> None:
        for name in [n for n in vars(cls) if _is_plain_name(n) and n not in members]:
            type.__delattr__(cls, name)
        for name, value in members.items():
            if vars(cls).get(name, _MISSING) is not value:
                type.__setattr__(cls, name, value)

    return restore


def _is_plain_name(name: str) -> bool:
    return not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl"


def saved_random(generator: Any) -> Restore:
    """A generator of random numbers that the user owns: Python's, NumPy's or torch's."""
    if isinstance(generator, random.SystemRandom):  # the machine's, which nobody can put back
        return lambda: None
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if hasattr(generator, "set_state"):  # torch's, and the older one of NumPy's
        return partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return partial(setattr, bits, "state", copy.deepcopy(bits.state))


def saved_array(held: Any) -> Restore:
    """A NumPy array's values and its shape; not where it has become shorter or longer."""
    values = held.copy()

    def restore() -> None:
        if held.size != values.size:
            return
        if held.shape != values.shape:
            held.shape = values.shape
        if held.flags.writeable:
            held[...] = values

    return restore
