"""The guard of a model's state: whether all that its modules hold is what was captured.

Plain dictionaries, and so the attributes of modules and objects, are checked by version: nothing is compared
while nothing is written. What was written, and containers without a version, are compared by identity, in a few
passes in C. Each tensor's address and layout is checked in every call, since `tensor.data = ...` writes to no
dictionary.
"""

from __future__ import annotations

import dis
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial, partialmethod
from itertools import chain
from operator import attrgetter, itemgetter
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from graphdoctor.graphs.calls.signature import is_constant
from graphdoctor.graphs.guards.unread import ReadWalk, is_unread, unread_attributes
from graphdoctor.graphs.tensor_layouts import TensorLayouts, are_at, wants_gradient
from graphdoctor.target.state.attributes import (
    attributes,
    has_walkable_state,
    is_stateful,
    slots_of,
)
from graphdoctor.target.state.dict_versions import DictVersions
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.kinds.tensors import grad_of
from graphdoctor.target.state.variables import attributes_read, cells_of
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.figures import shortened

HOLDERS = ("_parameters", "_buffers", "_modules")
NOTHING = object()


def joined(path: str, key: object) -> str:
    """The path of an attribute or an item."""
    name = f".{key}" if isinstance(key, str) else f"[{key!r}]"
    return f"{path}{name}".removeprefix(".")


def is_as_good(before: object, now: object) -> bool:
    """Whether no code can tell a value that is another object from the one before."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(is_as_good, before, now))
    if isinstance(before, MethodType) and isinstance(now, MethodType):
        return before.__self__ is now.__self__ and before.__func__ is now.__func__
    return is_constant(before) and repr(before) == repr(now)


def changed(path: str, before: object, now: object) -> str:
    if _is_object(before) and type(before) is type(now):
        return f"{path} is another object than the captured one"
    return f"{path} changed from {_short(before)} to {_short(now)}"


def _is_object(value: object) -> bool:
    if value is NOTHING or is_constant(value):
        return False
    return type(value) not in (list, tuple, set, deque) or not all(map(is_constant, value))  # type: ignore[call-overload]


def _short(value: object) -> str:
    if value is NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"one tensor of {tuple(value.shape)}"
    if _is_object(value):
        return f"one {type(value).__name__}"
    return shortened(repr(value))


_FROZEN = (FunctionType, CellType, type, partial, partialmethod)
_CONTAINERS = (dict, list, set, deque)
# Of what torch keeps in each module, a forward depends on these only: `training` and the holders.
_IGNORED = frozenset(vars(torch.nn.Module())) - {"training", *HOLDERS}


Readers = tuple[Callable[[Any], Iterable[object]], ...]
Now = Callable[[], dict[Any, object]]


class Entries(NamedTuple):
    """A container, or the slots of an object, as it was at the capture.

    `readers` give its keys and values in order, all of them if it is `whole`. `now` has the values by key, index or
    slot.
    """

    path: str
    live: Any
    readers: Readers
    now: Now
    before: dict[Any, object]
    is_whole: bool = True


Place = tuple[int, str]  # the id of a dictionary or of a variable's cell, and the name in it


class _HeldByModules(ReadWalk):
    """Such a walk that enters neither functions nor classes: their variables are frozen at capture."""

    def children(self, visit: Visit) -> Iterable[Visit]:
        return () if isinstance(visit.value, _FROZEN) else super().children(visit)


class ReachableState:
    """What the modules that `roots` reach hold, in the form in which it is compared.

    Left out are attributes of modules that no code reads, such as an environment that a constructor keeps.
    `versioned` are plain dictionaries that are not empty, `others` lists, sets, other dictionaries and slots.
    `empty` are dictionaries that were, and `hooks` the empty ones of hooks. `tensors` are those that modules and
    their objects hold, without gradients; `all_tensors` are also those that functions lead to. `around` is the
    module whose forward a graph replaces: its own hooks run around the graph, and its `forward` is the
    graph's place, so neither is watched. Of a function among the roots, which is a step, the variables that its
    own code reads are watched, too, and the floats that the user's functions read that it leads to. `without` and
    what only they lead to are left out. The `varying` places may hold a different object in each call.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        around: torch.nn.Module | None = None,
        without: Iterable[object] = (),
        varying: Set[Place] = frozenset(),
    ) -> None:
        self._varying = varying
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.versioned: list[Entries] = []
        self.others: list[Entries] = []
        self.empty: list[tuple[str, dict[Any, Any]]] = []
        self.hooks: list[dict[Any, Any]] = []
        self._around = around
        apart = [*without, *(all_hooks(around) if around is not None else ())]
        everything = list(Walk(roots, without=apart))
        every_tensor = [value for _, value, _ in everything if isinstance(value, torch.Tensor)]
        grads = {id(grad_of(value)) for value in every_tensor}
        self.all_tensors = [value for value in every_tensor if id(value) not in grads]
        modules = [value for _, value, _ in everything if isinstance(value, torch.nn.Module)]
        self._unread = unread = unread_attributes(roots, modules)
        visits = ReadWalk(roots, unread=unread, without=apart) if unread else everything
        found = [(str(path), value) for path, value, _ in visits]
        named = dict(roots)
        for path, value in found:
            if isinstance(value, torch.nn.Module):
                while path in named and named[path] is not value:  # variables of two functions
                    path += "'"
                named[path] = value
        steps = [value for value in roots.values() if isinstance(value, FunctionType)]
        for helper in (value for _, value in found if steps and isinstance(value, FunctionType)):
            if helper not in steps and is_user_file(helper.__code__.co_filename):
                self._add_floats(helper)
        for step in steps:
            names, cells = _globals_read(step), cells_of(step)
            self._add_some("", step.__globals__, names)
            watched = {
                n: c for n, c in cells.items() if not self._varies(c, n) and _contents({n: c})
            }
            contents = partial(_contents, watched)
            read_all = partial(map, attrgetter("cell_contents"))
            self.others.append(
                Entries("", [*watched.values()], (read_all,), contents, contents(), is_whole=False)
            )
            by_attributes = attributes_read(step)
            variables = [(name, step.__globals__[name]) for name in sorted(names)]
            for name, held in (*variables, *_contents(cells).items()):
                read = by_attributes.get(name, set())
                if not read or _is_watched_whole(held) or not read <= attributes(held).keys():
                    named.setdefault(name, held)
                    continue
                # What else the object holds may change: an environment that counts its own steps.
                self._add_some(name, attributes(held), read)
                named |= {joined(name, key): attributes(held)[key] for key in read}
        for held_at, value, _ in _HeldByModules(named, unread=unread, without=apart):
            if id(value) not in grads:
                self._add(str(held_at).removeprefix("."), value)

    def _varies(self, holder: object, name: str) -> bool:
        return (id(holder), name) in self._varying

    def _add_floats(self, helper: FunctionType) -> None:
        """Watch the variables from outside that have a float, and those that get one."""
        held, names = helper.__globals__, _globals_read(helper)
        names = {name for name in names if not self._varies(held, name)}
        cells = {n: cell for n, cell in cells_of(helper).items() if not self._varies(cell, n)}

        def floats() -> dict[str, object]:
            found = _only(held, names) | _contents(cells)
            return {name: value for name, value in found.items() if type(value) is float}

        if before := floats():
            values = (lambda _: floats().values(),)
            self.others.append(Entries("", helper, values, floats, before, is_whole=False))

    def _add_some(self, path: str, held: dict[Any, Any], names: Set[str]) -> None:
        """Watch what a dictionary has under these names."""
        names = {name for name in names if not self._varies(held, name)}
        if names:
            now, read = partial(_only, held, names), itemgetter(*names, next(iter(names)))
            self.others.append(Entries(path, held, (read,), now, now(), is_whole=False))

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
        if varying := self._varying_in(value):
            self._add_some(path, value, value.keys() - varying)
            return
        now: Now = partial(dict, value)
        self.versioned.append(Entries(path, value, (dict.keys, dict.values), now, now()))

    def _add_module(self, path: str, module: torch.nn.Module) -> None:
        own: dict[Any, Any] = attributes(module)
        ignored = _IGNORED | {n for n in own if is_unread(module, n, own[n], self._unread)}
        now = partial(_without, own, ignored)
        if module is self._around:
            # Each call writes to it, when a graph becomes its `forward`.
            now = partial(_without, own, ignored | {"forward"})
            self.others.append(Entries(path, module, (lambda _: _flat(now()),), now, now()))
        elif varying := self._varying_in(own):
            self._add_some(path, own, own.keys() - ignored - varying)
        else:
            self.versioned.append(Entries(path, own, (itemgetter(*now()),), now, now()))
        for name in HOLDERS:
            if name in own and not own[name]:  # one that is not empty is visited as a dictionary
                self.empty.append((joined(path, name), own[name]))
        if module is not self._around:
            # Without gradients, those around a backward do not run.
            names = HOOKS[:2] if self._around is None else HOOKS
            self.hooks += [own[name] for name in names if name in own and not own[name]]

    def _varying_in(self, held: dict[Any, Any]) -> set[str]:
        return {name for place, name in self._varying if place == id(held)}


def _without(held: dict[str, object], names: frozenset[str]) -> dict[object, object]:
    return {name: value for name, value in held.items() if name not in names}


def _globals_read(function: FunctionType) -> set[str]:
    """The globals that its own code reads, by name; an attribute `x.name` is no global."""
    found = {
        str(each.argval)
        for each in dis.get_instructions(function.__code__)
        if each.opname == "LOAD_GLOBAL"
    }
    return found & function.__globals__.keys()


def _contents(cells: Mapping[str, CellType]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in cells.items():
        with suppress(ValueError):  # one that has no value yet
            found[name] = cell.cell_contents
    return found


def _is_watched_whole(held: object) -> bool:
    return is_stateful(held) or isinstance(held, (torch.Tensor, *_CONTAINERS, *_FROZEN))


def _only(held: dict[Any, Any], names: Set[str]) -> dict[str, object]:
    return {name: held[name] for name in names if name in held}  # torch holds 1,500 names


def _flat(items: dict[object, object]) -> Iterable[object]:
    return (*items, *items.values())


def _by_index(items: Iterable[object]) -> dict[object, object]:
    return dict(enumerate(items))


def _slots(value: object) -> dict[object, object]:
    return dict(slots_of(value))


def _slot_values(value: object) -> Iterable[object]:
    return _slots(value).values()


_address = torch.Tensor.data_ptr
_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed has it for newer ones)


class Guard:
    """Watches what the modules that `roots` reach hold: attributes, containers, objects, hooks, tensors.

    Everything has to be the same object, or a constant that equals it. Holds the memory of all tensors that
    were reached, so that a replay never reads freed memory. `around` is the module whose forward a graph
    replaces during calls. What only `without` leads to is not watched, and neither are the `varying` places.
    With `grad`, the same tensors have to require gradients.

    `is_same()` is the check: fast, and False also if an equal constant was assigned again. Then
    `difference()` decides, and accepts the new object from there on.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        around: torch.nn.Module | None = None,
        without: Sequence[object] = (),
        varying: Set[Place] = frozenset(),
        grad: bool = False,
    ) -> None:
        self._roots, self._around, self._without = roots, around, without
        self._varying, self._grad = varying, grad
        self.is_same: Callable[[], bool] = self._watch()

    def _watch(self) -> Callable[[], bool]:
        found = ReachableState(self._roots, self._around, self._without, self._varying)
        self._entries = [*found.others, *found.versioned]
        self._empty, self._hooks = found.empty, found.hooks
        self.tensors = found.all_tensors
        self._paths = [path for path, _ in found.tensors]
        self._held = tensors = [tensor for _, tensor in found.tensors]
        self._wanted = list(map(wants_gradient, tensors))
        self._storages = [tensor.untyped_storage() for tensor in found.all_tensors]
        self._addresses: list[int | None] = list(map(_address, tensors))
        self._layouts = TensorLayouts(tensors, grad=self._grad)
        # The values of these may have become numbers in the graph.
        self._on_cpu = [
            place
            for place, tensor in enumerate(tensors)
            if is_on_cpu(tensor) and not tensor.is_inference()
        ]
        self._versions = [_version(tensors[place]) for place in self._on_cpu]
        self._by_identity = _SameItems(found.versioned), _SameItems(found.others)
        versions = DictVersions([each.live for each in found.versioned], self._by_identity[0].check)
        return self._check(versions.checker())

    def _check(self, dicts_are_same: Callable[[], bool]) -> Callable[[], bool]:
        """The check of one call, as one function of local variables."""
        nothing = [*(empty for _, empty in self._empty), *self._hooks]
        others_are_same = self._by_identity[1].check if self._by_identity[1].readers else None
        tensors, addresses, layouts = self._held, self._addresses, self._layouts
        every, unpacked = list(range(len(tensors))), tuple(tensors)
        grad, gradients_are_same = self._grad, self.gradients_are_same
        on_cpu, versions = [tensors[place] for place in self._on_cpu], self._versions

        def is_same() -> bool:
            try:
                return (
                    dicts_are_same()
                    and not any(nothing)
                    and (others_are_same is None or others_are_same())
                    and are_at(tensors, addresses, every)
                    and (not tensors or layouts.is_known(*unpacked) or layouts.recheck(tensors))
                    and (not grad or torch.is_grad_enabled() or gradients_are_same())
                    and (not on_cpu or [*map(_version, on_cpu)] == versions)
                )
            except Exception:  # an attribute is gone
                return False

        return is_same

    def gradients_are_same(self) -> bool:
        """Whether the same tensors require gradients as at the capture."""
        return list(map(wants_gradient, self._held)) == self._wanted

    def difference(self, *, grad: bool = False) -> str:
        """What changed, in one sentence; "" if nothing did, whatever equal constants were assigned again.

        With `grad`, what requires gradients counts.
        """
        if any(self._hooks):
            return "a hook was registered on a module, which a replay would not run"
        is_container_new = False
        for entries in self._entries:
            for path, before, now in _replaced(entries):
                if is_as_good(before, now):
                    continue
                if not self._has_content_of(before, now):
                    return changed(path, before, now)
                is_container_new = True
        if why := next(self._other_differences(grad=grad), ""):
            return why
        if is_container_new:
            self.is_same = self._watch()
        else:
            self._accept()
        return ""

    def _accept(self) -> None:
        """Compare with the objects that are there now, which equal those before."""
        for entries in self._entries:
            now = entries.now()
            entries.before.clear()
            entries.before.update(now)
        for each in self._by_identity:
            each.refresh()

    def _other_differences(self, *, grad: bool) -> Iterator[str]:
        yield from (
            f"{joined(path, next(iter(held)))} is new" for path, held in self._empty if held
        )
        for place, (path, tensor) in enumerate(zip(self._paths, self._held, strict=True)):
            if tensor.data_ptr() != self._addresses[place]:
                yield f"{path} is at another address than when it was captured"
            for name, before, now in self._layouts.differences(place, tensor):
                yield f"the {name} of {path} changed from {before} to {now}"
            if grad and tensor.requires_grad != (wanted := self._wanted[place]):
                yield f"requires_grad of {path} changed from {wanted} to {tensor.requires_grad}"
        for place, version in zip(self._on_cpu, self._versions, strict=True):
            if _version(self._held[place]) != version:
                yield f"the values of {self._paths[place]}, a tensor on the CPU, changed"

    def _has_content_of(self, before: object, now: object) -> bool:
        """Whether a container has the constants that the one before had at the capture."""
        whole = (each for each in self._entries if each.is_whole)
        captured = next((each for each in whole if each.live is before), None)
        if captured is None or type(now) not in (dict, list) or type(now) is not type(before):
            return False
        held: Any = now
        items: dict[Any, Any] = held if isinstance(now, dict) else dict(enumerate(held))
        return (
            len(items) == len(captured.before)
            and all(map(is_as_good, captured.before, items))
            and all(map(is_as_good, captured.before.values(), items.values()))
        )


def _replaced(entries: Entries) -> Iterator[tuple[str, object, object]]:
    """The path of each entry that is another object, what it was and what it is."""
    before, now = entries.before, entries.now()
    if entries.readers == (iter,):
        items, items_now = [*before.values()], [*now.values()]
        if all(map(is_constant, (*items, *items_now))):
            if not is_as_good(tuple(items), tuple(items_now)):
                yield entries.path, items, items_now
            return
        if len(items) != len(items_now):
            yield f"the length of {entries.path}", len(items), len(items_now)
            return
    for key in {**before, **now}:
        was, found = before.get(key, NOTHING), now.get(key, NOTHING)
        if was is not found:
            yield joined(entries.path, key), was, found


class _SameItems:
    """Whether containers hold the very objects that they held, in a few passes in C."""

    def __init__(self, entries: Sequence[Entries]) -> None:
        self.lives = [each.live for each in entries if each.is_whole]
        rows = [(reader, each.live) for each in entries for reader in each.readers]
        self.readers, self._read = [row[0] for row in rows], [row[1] for row in rows]
        self.items: list[object] = []
        self.counts: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        self.items[:], self.counts[:] = self._items_now(), self._counts_now()

    def check(self) -> bool:
        """Raises KeyError if an attribute is gone."""
        now = self._items_now()
        return (
            self._counts_now() == self.counts
            and len(now) == len(self.items)
            and all(map(operator.is_, now, self.items))
        )

    def _items_now(self) -> list[object]:
        return [*chain.from_iterable(map(_call, self.readers, self._read))]

    def _counts_now(self) -> list[int]:
        return [*map(operator.length_hint, self.lives)]


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor's values may be numbers in a graph: the graph itself copies from pinned memory."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_pinned()


# Those that run before or after a forward come first.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_ALL_MODULES: list[dict[Any, Any]] = [
    getattr(torch_module, f"_global{name}")
    for name in HOOKS
    if hasattr(torch_module, f"_global{name}")
]


def all_hooks(module: torch.nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries of a module's own hooks; torch keeps the same ones for the module's whole life."""
    return [getattr(module, name) for name in HOOKS if hasattr(module, name)]


def has_global_hooks() -> bool:
    """Whether hooks are registered that run for every module."""
    return any(OF_ALL_MODULES)
