"""A module -> all that its forward can read from the host: the containers, variables and tensors to watch."""

from __future__ import annotations

import builtins
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from functools import partial, partialmethod
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

import torch

from graphdoctor.graphs.guards.asked_of_tensors import traits_read
from graphdoctor.graphs.guards.classes import members_of, names_in, watched_classes
from graphdoctor.graphs.guards.code_reads import (
    absent_reads,
    global_reads,
    is_ours,
    library_reads,
    parts_of,
)
from graphdoctor.graphs.guards.for_other_methods import for_other_methods
from graphdoctor.graphs.guards.hooks import HOOKS, all_hooks
from graphdoctor.graphs.guards.host_memory import contents_of, is_read_by_host, numbers_of
from graphdoctor.graphs.guards.may_run import may_run
from graphdoctor.graphs.guards.paths import HOLDERS, joined, outside
from graphdoctor.graphs.guards.settings import (
    GRADIENTS,
    OF_THE_THREAD,
    SEED,
    asks_for_requires_grad,
    settings_read,
)
from graphdoctor.target.state.attributes import (
    attributes,
    has_walkable_state,
    is_of_library,
    slot_descriptors,
)
from graphdoctor.target.state.plain import SCALARS
from graphdoctor.target.state.saved import in_context
from graphdoctor.target.state.variables import is_user_class
from graphdoctor.target.state.walk import Visit, Walk, grad_of
from graphdoctor.target.user_code import is_user_file

Held = dict[Any, Any]

# The rest of what torch keeps in each module says nothing about its forward.
_IGNORED = frozenset(vars(torch.nn.Module())) - {"training", *HOLDERS, *HOOKS[:2]}
_CONTAINERS: tuple[Any, ...] = (dict, list, set, deque, bytearray)


class Reached:
    """What a walk from `roots` finds, in the form in which it is compared.

    `modules` are their paths with their attributes; `containers` have a copy of what was in them;
    `exact` are entries of dictionaries for which being equal is not enough: 1 == 1.0, tensors of one
    element compare by value, and a container that takes another's place changes unseen later.
    `asked` are those that no dictionary has: slots and context variables. `memory` is what is written to
    without another object: arrays, streams, tensors of the host; `settings` are those of the process.
    `objects` are those whose class may be another, and `parts` what has a name and no dictionary, as a function's
    code. `classes` are dictionaries of classes, whose names may be more or fewer; of all that `seldom_written`,
    `exact` has each name. `absent` are names that code asks for in vain; `traits` what it asks of tensors.
    `around` is the module whose forward a graph stands in for: its own hooks run around the graph,
    and `forward` is where the graph is put, so neither is watched; and whether gradients are enabled is told
    by the signature of each call.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        around: torch.nn.Module | None = None,
        without: Iterable[object] = (),
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.tensor_paths: list[str] = []
        self.containers: list[tuple[str, Any, Any]] = []
        self.modules: list[tuple[str, Held, list[str]]] = []
        self.empty: list[tuple[str, Held]] = []
        self.hooks: list[Held] = []
        self.exact: list[tuple[str, Held, Any]] = []
        self.asked: list[tuple[str, Callable[[], object]]] = []
        self.cells: list[tuple[str, CellType]] = []
        self.memory: list[tuple[str, Callable[[], object]]] = []
        self.settings: dict[str, Callable[[], object]] = {}
        self.objects: list[tuple[str, object]] = []
        self.parts: list[tuple[str, object, str]] = []
        self.absent: list[tuple[str, Held, frozenset[str]]] = []
        self.classes: list[tuple[str, Held, frozenset[str]]] = []
        self.seldom_written: list[Held] = []
        self.reads_requires_grad = False
        self._seen: set[object] = set()
        self._grads: set[int] = set()
        self._around, self._roots = around, tuple(roots.values())
        self._not_read = for_other_methods(self._roots)
        left_out = [*(all_hooks(around) if around is not None else []), *self._not_read, *without]
        self._functions: list[FunctionType] = []
        self._absent: dict[int, tuple[Held, set[str]]] = {}
        self._seeds: list[tuple[str, Callable[[], object]]] = []
        for visit in Walk(roots, with_empty=False, without=left_out):
            self._add(visit)
        self.absent += [
            (str(namespace.get("__name__", "")), namespace, frozenset(names))
            for namespace, names in self._absent.values()
        ]
        if SEED[0] in self.settings:
            self.memory += self._seeds
        modules = [value for _, value in self.objects if isinstance(value, torch.nn.Module)]
        self.traits = traits_read(may_run(self._functions, modules))

    def _add(self, visit: Visit) -> None:
        value = visit.value
        path = visit.path.removeprefix(".")
        if isinstance(value, torch.Tensor):
            self._add_tensor(path, value)
        elif isinstance(value, torch.nn.Module):
            self._add_module(path, value)
        elif isinstance(value, FunctionType):
            self._add_function(path, value)
        elif isinstance(value, CellType):
            if path.rpartition(".")[2] != "__class__":  # of super(), which nobody assigns
                self.cells.append((path, value))
        elif isinstance(value, type):
            self._add_classes(value)
        elif isinstance(value, (partial, partialmethod)):
            self.parts += [(path, value, name) for name in ("func", "args", "keywords")]
        elif type(value) is dict and not value:
            if visit.shown:  # and not in the place of what a function lacks
                self.empty.append((path, value))
        elif isinstance(value, _CONTAINERS):
            self._add_container(path if visit.shown else outside(path), value)
        elif isinstance(value, ContextVar):
            self.asked.append((path, partial(in_context, value)))
        elif isinstance(value, torch.Generator):
            self._seeds.append((path, value.initial_seed))
        else:
            if (contents := contents_of(path, value)) is not None:
                self.memory.append((path, contents))
            if has_walkable_state(value):
                self._add_object(path, value)
            elif is_of_library(value):
                self._add_numbers_of(path, value)

    def _add_function(self, path: str, function: FunctionType) -> None:
        for namespace, name in global_reads(function):
            self._add_read(name, namespace, name)
        if not is_user_file(function.__code__.co_filename):
            return
        self._functions.append(function)
        self.parts += [(path, function, name) for name in parts_of(function)]
        for namespace, names in absent_reads(function):
            self._add_absent(namespace, names)
        for where, namespace, name in library_reads(function):
            if id(namespace) not in self._seen:
                self._seen.add(id(namespace))
                self.seldom_written.append(namespace)
            self._add_read(where, namespace, name)
            self._add_content(where, namespace[name])
        self.settings.update(
            each for each in settings_read(function) if each is not GRADIENTS or not self._around
        )
        self.reads_requires_grad |= asks_for_requires_grad(function)
        self._add_attributes(path, vars(function))

    def _add_read(self, path: str, held: Held, name: str) -> None:
        if (id(held), name) not in self._seen:
            self._seen.add((id(held), name))
            self.exact.append((path, held, name))

    def _add_content(self, path: str, value: Any) -> None:
        """Of a container of a library's, such as the filters of warnings: no walk goes there."""
        if type(value) in _CONTAINERS and id(value) not in self._seen:
            self._seen.add(id(value))
            add = self._add_attributes if type(value) is dict else self._add_container
            add(path, value)

    def _add_absent(self, namespace: Held, names: frozenset[str]) -> None:
        """Of these, Python's own functions are read; what it lacks too may come to be there."""
        self._absent.setdefault(id(namespace), (namespace, set()))[1].update(names)
        for name in names.intersection(vars(builtins)):
            if id(vars(builtins)) not in self._seen:
                self._seen.add(id(vars(builtins)))
                self.seldom_written.append(vars(builtins))
            if not is_ours(vars(builtins)[name]):
                self._add_read(name, vars(builtins), name)

    def _add_attributes(self, path: str, own: Held) -> None:
        if own:
            self.containers.append((path, own, dict(own)))
            self._add_exact(path, own)
        else:
            self.empty.append((path, own))

    def _add_numbers_of(self, path: str, value: object) -> None:
        """Of an object of Python's library, such as whether an event is set, or the level of a logger."""
        own = attributes(value)
        for name, held in own.items():
            if issubclass(type(held), SCALARS):
                self._add_read(joined(path, name), own, name)

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        if (grad := grad_of(tensor)) is not None:
            self._grads.add(id(grad))
        if id(tensor) not in self._grads:
            self.tensors.append(tensor)
            self.tensor_paths.append(path)
            if is_read_by_host(tensor):
                self.memory.append((path, numbers_of(path, tensor)))
            self._add_attributes(path, _own_of(tensor))

    def _add_container(self, path: str, value: Any) -> None:
        kind = next(kind for kind in _CONTAINERS if isinstance(value, kind))
        self.containers.append((path, value, kind(value)))
        if isinstance(value, dict):
            self._add_exact(path, value)
        if kind is not type(value):  # a subclass may have attributes beside what it contains
            self._add_object(path, value)

    def _add_object(self, path: str, value: object) -> None:
        self.objects.append((path, value))
        self._add_classes(type(value))
        if isinstance(value, threading.local):
            self.settings.update([OF_THE_THREAD])
        self._add_attributes(path, self._add_dict_of(path, value))
        for name, descriptor in slot_descriptors(type(value)):
            self.asked.append((joined(path, name), partial(_slot, descriptor, value)))

    def _add_dict_of(self, path: str, value: object) -> Held:
        """Its attributes, in whose place another dictionary may come."""
        own = attributes(value)
        is_plain = type(value).__getattribute__ is object.__getattribute__
        if is_plain and getattr(value, "__dict__", None) is own:  # and no property of the user's
            self.parts.append((path, value, "__dict__"))
        return own

    def _add_classes(self, kind: type) -> None:
        """What is written into a class, one of a library too, is seen by all of its objects."""
        for cls in watched_classes(kind):
            members = members_of(cls)
            if id(cls) in self._seen or members is None:
                continue
            self._seen.add(id(cls))
            names = frozenset(names_in(members))
            self.classes.append((cls.__name__, members, names))
            self.seldom_written.append(members)
            for name in names:
                self.exact.append((joined(cls.__name__, name), members, name))
            if is_user_class(cls):
                self.parts.append((cls.__name__, cls, "__mro__"))

    def _add_module(self, path: str, module: torch.nn.Module) -> None:
        self.objects.append((path, module))
        self._add_classes(type(module))
        is_root = any(module is root for root in self._roots)  # of each inside it would be 25 ns
        own: Held = self._add_dict_of(path, module) if is_root else attributes(module)
        hidden = {"forward", *HOOKS} if module is self._around else set()
        if self._not_read:
            hidden |= {name for name in own if any(own[name] is each for each in self._not_read)}
        self.modules.append(
            (path, own, [name for name in own if name not in _IGNORED and name not in hidden])
        )
        for name in HOLDERS:
            if name in own and not own[name]:  # one that is not empty is visited as a dictionary
                self.empty.append((joined(path, name), own[name]))
        if module is not self._around:
            # Without gradients, those around a backward are not run.
            names = HOOKS[:2] if self._around is None else HOOKS
            self.hooks += [own[name] for name in names if name in own and not own[name]]
        self._add_exact(path, own, hidden | set(HOOKS))

    def _add_exact(self, path: str, held: Held, hidden: AbstractSet[str] = frozenset()) -> None:
        for key, value in held.items():
            if key in _IGNORED or key in hidden or (key in HOLDERS and not value):
                continue
            if is_watched_exactly(value):
                self.exact.append((joined(path, key), held, key))


def _own_of(tensor: torch.Tensor) -> Held:
    """Its attributes; what torch.compile notes on it means nothing to a forward."""
    own = attributes(tensor)
    return {} if any(name.startswith("_dynamo_") for name in own) else own


def is_watched_exactly(value: object) -> bool:
    """Whether `==` may say that another value is this one, such as `1 == True` and `b"" == bytearray()`."""
    if isinstance(value, torch.Tensor):
        return value.numel() <= 1  # of a larger one, `==` has no truth value
    return type(value).__eq__ is not object.__eq__


def _slot(descriptor: MemberDescriptorType, value: object) -> object:
    try:
        return descriptor.__get__(value)
    except AttributeError:  # not set
        return None
