"""Objects with attributes and slots: the user's, modules, optimizers, and those of Python's library."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from types import MemberDescriptorType, ModuleType
from typing import Any, ClassVar

import torch

from graphdoctor.target.state.attributes import (
    attributes,
    is_state_type,
    slot_descriptors,
)
from graphdoctor.target.state.kinds.kind import Kind, Restore, Surroundings, Visit
from graphdoctor.target.state.kinds.written import MISSING, saved_dict
from graphdoctor.target.state.saved_tensor import Saving
from graphdoctor.target.state.variables import is_user_class
from graphdoctor.values.locations import is_library

_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}


class Object(Kind):
    """Any object: a user's by its attributes and slots; objects of Python's library hold no state."""

    types: ClassVar[tuple[type, ...]] = (object,)

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.is_state = is_state_type(cls)
        self._slots = tuple(slot_descriptors(cls))
        self._user_classes = tuple(base for base in cls.__mro__ if is_user_class(base))

    def children(self, visit: Visit, walk: Surroundings) -> Iterable[Visit]:
        return self.parts(visit, walk) if self.is_state else ()

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return self.save_parts(value) if self.is_state else ()

    def parts(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        """Attributes, slots that are set, and the user's classes that it is an instance of."""
        path, value, _ = visit
        for name, child in self.ordered(attributes(value)):
            yield Visit(path.attribute(name), child)
        for name, slot in self._slots:
            if (child := in_slot(slot, value)) is not MISSING:
                yield Visit(path.attribute(name), child)
        yield from self.classes(walk)

    def ordered(self, own: dict[str, object]) -> list[tuple[str, object]]:
        return list(own.items())

    def classes(self, walk: Surroundings) -> Iterator[Visit]:
        for cls in self._user_classes:
            yield Visit(walk.variable(cls.__name__, cls), cls, False)

    def save_parts(self, value: object) -> Iterator[Restore]:
        yield saved_dict(attributes(value))
        if self._slots:
            yield saved_slots(value, self._slots)


Slots = tuple[tuple[str, MemberDescriptorType], ...]


def saved_slots(held: object, slots: Slots) -> Restore:
    """The slots of an object, unset ones included; also of a frozen dataclass."""
    values = [(slot, in_slot(slot, held)) for _, slot in slots]

    def restore() -> None:
        for slot, value in values:
            if value is not MISSING:
                slot.__set__(held, value)
            elif in_slot(slot, held) is not MISSING:
                slot.__delete__(held)

    return restore


def in_slot(slot: MemberDescriptorType, held: object) -> object:
    try:
        return slot.__get__(held, type(held))
    except AttributeError:
        return MISSING


class Module(Object):
    types = (torch.nn.Module,)
    names_keys = True

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, value, _ = visit
        for name, child in list(attributes(value).items()):
            is_internal = name in _MODULE_INTERNALS
            if walk.with_empty or not is_internal or child:
                yield Visit(path.attribute(name), child, not is_internal)
        yield from self.classes(walk)


class ScriptModule(Object):
    types = (torch.jit.ScriptModule,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        module: Any = visit.value
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            yield Visit(visit.path.attribute(name), tensor)


class Optimizer(Object):
    """Its state is keyed by parameters, so it is visited after whatever holds and names them."""

    types = (torch.optim.Optimizer,)
    is_late = True

    def ordered(self, own: dict[str, object]) -> list[tuple[str, object]]:
        # Parameters get a plain name from here when no module has named them.
        return sorted(own.items(), key=lambda item: item[0] != "param_groups")


class Inert(Kind):
    """A Python module: what code uses of it is found by the names in the code."""

    types = (ModuleType,)


class Thread(Object):
    types = (threading.Thread,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterable[Visit]:
        return () if _is_run_by_a_library(visit.value) else super().children(visit, walk)


def _is_run_by_a_library(thread: Any) -> bool:
    """A running thread of an installed package, such as tqdm's monitor: what it counts is no step's doing."""
    if thread is threading.current_thread():
        return False
    file = getattr(sys.modules.get(type(thread).__module__), "__file__", None)
    return file is not None and is_library(file) and thread.is_alive()


class Queue(Object):
    types = (queue.Queue,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        if not self.is_state and threading.active_count() == 1:  # else others use it, too
            yield Visit(visit.path, attributes(visit.value).get("queue"))
        yield from super().children(visit, walk)
