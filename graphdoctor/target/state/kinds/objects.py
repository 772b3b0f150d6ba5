"""Objects with attributes and slots: the user's, modules, optimizers, and those of Python's library."""

from __future__ import annotations

import dataclasses
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.utils import _pytree

from graphdoctor.target.state.attributes import (
    attributes,
    is_state_type,
    is_stateful_type,
    slots,
    slots_of,
)
from graphdoctor.target.state.kinds.kind import (
    Kind,
    Node,
    Restore,
    Surroundings,
    Visit,
    key_step,
    saved_dict,
    saved_slots,
)
from graphdoctor.target.state.paths import StatePath
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
        self._user_classes = tuple(base for base in cls.__mro__ if is_user_class(base))

    def children(self, visit: Visit, walk: Surroundings) -> Iterable[Visit]:
        return self.parts(visit, walk) if self.is_state else ()

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return self.save_parts(value) if self.is_state else ()

    def write(self, value: Any, path: StatePath, new: object) -> None:
        slot = slots(value).get(str(path.name)) if self.is_state else None
        if slot is None:
            super().write(value, path, new)
        else:
            slot.__set__(value, new)

    def open(self, value: Any, *, into_objects: bool) -> Node | None:
        if is_stateful_type(self.cls):
            return None
        if (registered := _pytree.SUPPORTED_NODES.get(self.cls)) is not None:
            return _open_registered(value, registered)
        return self.node(value, into_objects) if self._may_be_copied else None

    def node(self, value: Any, into_objects: bool) -> Node | None:
        """By its attributes: those of a mapping that hold its items count as the items."""
        own = self.own(value)
        steps: dict[str, str] | None = None
        if issubclass(self.cls, Mapping):
            steps = {name: "" for name, part in own.items() if _holds_items_of(value, part)} or None
        elif dataclasses.is_dataclass(self.cls):
            steps = {field.name: f".{field.name}" for field in dataclasses.fields(self.cls)}
            own = {**{name: own[name] for name in steps if name in own}, **own}
        if steps is None:
            is_state = self.is_state or any(isinstance(p, torch.Tensor) for p in own.values())
            if not (into_objects and own and is_state):
                return None
        return Node(value, [], self._make, own=own, steps=steps) if self._make else None

    def own(self, value: object) -> dict[str, object]:
        """Attributes, and slots that are set."""
        own = dict(attributes(value))
        return own | dict(slots_of(value)) if slots(value) else own

    def parts(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        """What is its own, and the user's classes that it is an instance of."""
        path, value, _ = visit
        for name, child in self.own(value).items():
            yield Visit(path.attribute(name), child)
        yield from self.classes(walk)

    def classes(self, walk: Surroundings) -> Iterator[Visit]:
        for cls in self._user_classes:
            yield Visit(walk.variable(cls.__name__, cls), cls, False)

    def save_parts(self, value: object) -> Iterator[Restore]:
        yield saved_dict(attributes(value))
        if slots(value):
            yield saved_slots(value)

    @cached_property
    def _may_be_copied(self) -> bool:
        """Not where a class says itself how it is copied, or looks after something until it is gone."""
        copies = getattr(self.cls, "__copy__", None)
        is_own = getattr(copies, "__module__", None) not in (None, "collections")
        return not (copies is not None and is_own) and not hasattr(self.cls, "__del__")

    @cached_property
    def _make(self) -> Callable[[object], object] | None:
        """Makes an empty object, past the constructor; None where the class is not Python's alone."""
        base: Any = SimpleNamespace if issubclass(self.cls, SimpleNamespace) else object
        try:
            base.__new__(self.cls)
        except TypeError:
            return None
        return lambda _: base.__new__(self.cls)


def _holds_items_of(value: Mapping[Any, Any], part: object) -> bool:
    try:
        return isinstance(part, Mapping) and list(part) == list(value)
    except Exception:  # both may be the user's code
        return False


def _open_registered(value: object, registered: Any) -> Node | None:
    """What torch's pytree was told of, such as the outputs of transformers' models."""
    try:
        parts, context = registered.flatten_fn(value)
        parts = list(parts)
        if isinstance(value, Mapping) and len(value) == len(parts):
            steps = list(map(key_step, value))
        elif (with_keys := registered.flatten_with_keys_fn) is not None:
            steps = [_entry_step(entry) for entry, _ in with_keys(value)[0]]
        else:
            steps = [f"[{index}]" for index in range(len(parts))]
    except Exception:  # a library's own code
        return None
    content = list(zip(steps, parts, strict=True))
    return Node(value, content, lambda parts: registered.unflatten_fn(list(parts), context))


def _entry_step(entry: Any) -> str:
    if isinstance(entry, _pytree.GetAttrKey):
        return f".{entry.name}"
    return f"[{entry.idx}]" if isinstance(entry, _pytree.SequenceKey) else key_step(entry.key)


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

    def own(self, value: object) -> dict[str, object]:
        # Parameters get a plain name from here when no module has named them.
        return dict(sorted(super().own(value).items(), key=lambda item: item[0] != "param_groups"))


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
