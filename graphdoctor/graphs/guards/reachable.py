"""The state that a guard watches: what modules hold, found by a walk from them."""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial, partialmethod
from operator import itemgetter
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch

from graphdoctor.graphs.guards.differences import HOLDERS, joined
from graphdoctor.graphs.guards.hooks import HOOKS, all_hooks
from graphdoctor.target.state.attributes import attributes, has_walkable_state, slots_of
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.kinds.tensors import grad_of
from graphdoctor.target.state.walk import Walk

_FROZEN = (FunctionType, CellType, type, partial, partialmethod, Context, ContextVar)
_CONTAINERS = (dict, list, set, deque)
# transformers' models hold what generate() goes by, which no forward reads, and programs change it between calls.
_NOT_READ = "generation_config"
# The rest of what torch keeps in each module says nothing about its forward.
_IGNORED = frozenset({*vars(torch.nn.Module()), _NOT_READ}) - {"training", *HOLDERS}


Readers = tuple[Callable[[Any], Iterable[object]], ...]
Now = Callable[[], dict[object, object]]


class Entries(NamedTuple):
    """A container, or the slots of an object, as it was at the capture.

    `readers` give all its keys and values in order. `now` has the values by key, index or slot.
    """

    path: str
    live: Any
    readers: Readers
    now: Now
    before: dict[object, object]


class _HeldByModules(Walk):
    """A walk that enters neither functions nor classes: their variables are frozen at capture."""

    def children(self, visit: Visit) -> Iterable[Visit]:
        return () if isinstance(visit.value, _FROZEN) else super().children(visit)


class ReachableState:
    """What the modules that `roots` reach hold, in the form in which it is compared.

    `versioned` are plain dictionaries that are not empty, `others` lists, sets, other dictionaries and slots.
    `empty` are dictionaries that were, and `hooks` the empty ones of hooks. `tensors` are those that modules and
    their objects hold, without gradients; `all_tensors` are also those that functions lead to. `around` is the
    module whose forward a graph replaces: its own hooks run around the graph, and its `forward` is the
    graph's place, so neither is watched. Of a function among the roots, which is a step, the variables that its
    own code reads are watched, too. `without` and what only they lead to are left out.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        around: torch.nn.Module | None = None,
        without: Iterable[object] = (),
    ) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.versioned: list[Entries] = []
        self.others: list[Entries] = []
        self.empty: list[tuple[str, dict[Any, Any]]] = []
        self.hooks: list[dict[Any, Any]] = []
        self._around = around
        apart = [*without, *(all_hooks(around) if around is not None else ())]
        everything = list(Walk(roots, with_empty=False, without=apart))
        found = [(str(path), value) for path, value, _ in everything]
        grads = {id(grad_of(value)) for _, value in found if isinstance(value, torch.Tensor)}
        self.all_tensors = [
            value
            for _, value in found
            if isinstance(value, torch.Tensor) and id(value) not in grads
        ]
        named = dict(roots)
        for path, value in found:
            if isinstance(value, torch.nn.Module):
                while path in named and named[path] is not value:  # variables of two functions
                    path += "'"
                named[path] = value
                apart += [attributes(value)[_NOT_READ]] if attributes(value).get(_NOT_READ) else []
        for step in [value for value in roots.values() if isinstance(value, FunctionType)]:
            variables = partial(_variables, step, _names_loaded(step))
            reader = partial(_values_of, variables)
            self.others.append(Entries("", step, (reader,), variables, variables()))
            for name, held in variables().items():
                named.setdefault(str(name), held)
        for held_at, value, _ in _HeldByModules(named, with_empty=False, without=apart):
            if id(value) not in grads:
                self._add(str(held_at).removeprefix("."), value)

    def _add(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            self._add_attributes(path, value)
        elif isinstance(value, torch.nn.Module):
            self._add_module(path, value)
        elif type(value) is dict:
            if value:
                self._add_dict(path, value)
            else:
                self.empty.append((path, value))
        elif isinstance(value, _CONTAINERS):
            readers: Readers = (iter,)
            now: Now = partial(_by_index, value)
            if isinstance(value, dict):
                readers, now = (type(value).keys, type(value).values), partial(dict, value)
            self.others.append(Entries(path, value, readers, now, now()))
            self._add_attributes(path, value)
        elif not isinstance(value, _FROZEN) and has_walkable_state(value):
            if type(value).__dictoffset__ and not attributes(value):
                self.empty.append((path, attributes(value)))
            self._add_attributes(path, value)
            now = partial(_slots, value)
            if now():
                self.others.append(Entries(path, value, (_slot_values,), now, now()))

    def _add_attributes(self, path: str, value: object) -> None:
        own = attributes(value)
        # What torch.compile notes on a tensor means nothing to a forward.
        if own and not any(name.startswith("_dynamo_") for name in own):
            self._add_dict(path, own)

    def _add_dict(self, path: str, value: dict[Any, Any]) -> None:
        stem, _, name = path.rpartition(".")
        path = stem if name in HOLDERS else path
        now: Now = partial(dict, value)
        self.versioned.append(Entries(path, value, (dict.keys, dict.values), now, now()))

    def _add_module(self, path: str, module: torch.nn.Module) -> None:
        own: dict[Any, Any] = attributes(module)
        now = partial(_without, own, _IGNORED)
        if module is self._around:
            # Each call writes to it, when a graph becomes its `forward`.
            now = partial(_without, own, _IGNORED | {"forward"})
            self.others.append(Entries(path, module, (lambda _: _flat(now()),), now, now()))
        else:
            self.versioned.append(Entries(path, own, (itemgetter(*now()),), now, now()))
        for name in HOLDERS:
            if name in own and not own[name]:  # one that is not empty is visited as a dictionary
                self.empty.append((joined(path, name), own[name]))
        if module is not self._around:
            # Without gradients, those around a backward do not run.
            names = HOOKS[:2] if self._around is None else HOOKS
            self.hooks += [own[name] for name in names if name in own and not own[name]]


def _without(held: dict[str, object], names: frozenset[str]) -> dict[object, object]:
    return {name: value for name, value in held.items() if name not in names}


def _names_loaded(function: FunctionType) -> list[str]:
    """The globals that its own code reads, by name; an attribute `x.name` is no global."""
    found = {
        str(each.argval)
        for each in dis.get_instructions(function.__code__)
        if each.opname == "LOAD_GLOBAL"
    }
    return sorted(found)


def _variables(function: FunctionType, names: Sequence[str]) -> dict[object, object]:
    held = function.__globals__
    found: dict[object, object] = {name: held[name] for name in names if name in held}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # one that has no value yet
            found[name] = cell.cell_contents
    return found


def _values_of(variables: Now, _: object) -> Iterable[object]:
    return variables().values()


def _flat(items: dict[object, object]) -> Iterable[object]:
    return (*items, *items.values())


def _by_index(items: Iterable[object]) -> dict[object, object]:
    return dict(enumerate(items))


def _slots(value: object) -> dict[object, object]:
    return dict(slots_of(value))


def _slot_values(value: object) -> Iterable[object]:
    return _slots(value).values()
