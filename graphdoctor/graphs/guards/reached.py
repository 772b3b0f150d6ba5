"""A module -> all that its forward can read from the host: the containers, variables and tensors to watch."""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from functools import partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any

import torch

from graphdoctor.graphs.guards.hooks import HOOKS, all_hooks
from graphdoctor.target.state.attributes import attributes, has_walkable_state, slot_descriptors
from graphdoctor.target.state.plain import is_array, is_memory, stands_for
from graphdoctor.target.state.saved import in_context
from graphdoctor.target.state.snapshot import has_memory
from graphdoctor.target.state.variables import Namespace, global_names, is_user_class
from graphdoctor.target.state.walk import Visit, Walk, grad_of
from graphdoctor.target.user_code import is_user_file

Held = dict[Any, Any]

HOLDERS = ("_parameters", "_buffers", "_modules")
# The rest of what torch keeps in each module says nothing about its forward.
_IGNORED = frozenset(vars(torch.nn.Module())) - {"training", *HOLDERS, *HOOKS[:2]}
_CONTAINERS: tuple[Any, ...] = (dict, list, set, deque, bytearray)


class Reached:
    """What a walk from `roots` finds, in the form in which it is compared.

    `modules` are their paths with their attributes; `containers` have a copy of what was in them;
    `exact` are entries of dictionaries for which being equal is not enough: 1 == 1.0, tensors of one
    element compare by value, and a container that takes another's place changes unseen later.
    `asked` are those that no dictionary has: slots, attributes of classes, context variables.
    `memory` is what is written to without another object: arrays, and short tensors of the host.
    `around` is the module whose forward a graph stands in for: its own hooks run around the graph,
    and `forward` is where the graph is put, so neither is watched.
    """

    def __init__(self, roots: Mapping[str, object], around: torch.nn.Module | None = None) -> None:
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
        self._grads: set[int] = set()
        self._around = around
        left_out = all_hooks(around) if around is not None else []
        for visit in Walk(roots, with_empty=False, without=left_out):
            self._add(visit)

    def _add(self, visit: Visit) -> None:
        value = visit.value
        path = visit.path.removeprefix(".")
        if isinstance(value, torch.Tensor):
            self._add_tensor(path, value)
        elif isinstance(value, torch.nn.Module):
            self._add_module(path, value)
        elif isinstance(value, FunctionType):
            for namespace, name in global_reads(value):
                self.exact.append((name, namespace, name))
            if is_user_file(value.__code__.co_filename):
                self._add_function(path, value)
        elif isinstance(value, CellType):
            self.cells.append((path, value))
        elif isinstance(value, type):
            if is_user_class(value):
                self._add_class(value)
        elif isinstance(value, _CONTAINERS):
            self._add_container(path if visit.shown else _outside(path), value)
        elif isinstance(value, ContextVar):
            self.asked.append((path, partial(in_context, value)))
        else:
            if is_array(value) or is_memory(value):
                self.memory.append((path, partial(stands_for, path, value)))
            if has_walkable_state(value):
                self._add_object(path, value)

    def _add_function(self, path: str, function: FunctionType) -> None:
        if own := vars(function):
            self.containers.append((path, own, dict(own)))
            self._add_exact(path, own)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self.asked.append((joined(path, name), partial(getattr, function, name)))

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        if (grad := grad_of(tensor)) is not None:
            self._grads.add(id(grad))
        if id(tensor) not in self._grads:
            self.tensors.append(tensor)
            self.tensor_paths.append(path)
            if _is_read_by_host(tensor):
                self.memory.append((path, partial(_numbers_of, tensor)))

    def _add_container(self, path: str, value: Any) -> None:
        kind = next(kind for kind in _CONTAINERS if isinstance(value, kind))
        self.containers.append((path, value, kind(value)))
        if isinstance(value, dict):
            self._add_exact(path, value)
        if kind is not type(value):  # a subclass may have attributes beside what it contains
            self._add_object(path, value)

    def _add_object(self, path: str, value: object) -> None:
        if own := attributes(value):
            self.containers.append((path, own, dict(own)))
            self._add_exact(path, own)
        for name, descriptor in slot_descriptors(type(value)):
            self.asked.append((joined(path, name), partial(_slot, descriptor, value)))

    def _add_class(self, value: type) -> None:
        members = vars(value)
        self.containers.append((value.__name__, members, dict(members)))
        for name, member in members.items():
            if not name.startswith("__") and is_watched_exactly(member):
                self.asked.append((joined(value.__name__, name), partial(members.get, name)))

    def _add_module(self, path: str, module: torch.nn.Module) -> None:
        own: Held = attributes(module)
        hidden = {"forward", *HOOKS} if module is self._around else set()
        self.modules.append(
            (path, own, [name for name in own if name not in _IGNORED and name not in hidden])
        )
        for name in HOLDERS:
            if name in own and not own[name]:  # one that is not empty is visited as a dictionary
                self.empty.append((joined(path, name), own[name]))
        if module is not self._around:
            self.hooks += [own[name] for name in HOOKS if name in own and not own[name]]
        self._add_exact(path, own, hidden | set(HOOKS))

    def _add_exact(self, path: str, held: Held, hidden: AbstractSet[str] = frozenset()) -> None:
        for key, value in held.items():
            if key in _IGNORED or key in hidden or (key in HOLDERS and not value):
                continue
            if is_watched_exactly(value):
                self.exact.append((joined(path, key), held, key))


# A longer one of the host's is copied to the GPU rather than read, and what is pinned is copied by the graph.
_FEW_NUMBERS = 64


def _is_read_by_host(tensor: torch.Tensor) -> bool:
    """Whether what it holds may have become a number in the graph: a scale, or what `item()` gave."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return tensor.numel() <= _FEW_NUMBERS and not tensor.is_pinned()


def _numbers_of(tensor: torch.Tensor) -> str:
    if not has_memory(tensor):  # reading what was freed would crash
        return "none"
    return repr(tensor.tolist())  # where nan is nan, and 0.0 not -0.0


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


def joined(path: str, key: object) -> str:
    """The path of an attribute or an item."""
    name = f".{key}" if isinstance(key, str) else f"[{key!r}]"
    return f"{path}{name}".removeprefix(".")


def _outside(path: str) -> str:
    """The path of the module whose parameters, buffers or submodules a dictionary holds."""
    stem, _, name = path.rpartition(".")
    return stem if name in HOLDERS else path


def global_reads(function: FunctionType) -> Iterator[tuple[Namespace, str]]:
    """Names that a function's code loads as globals; of modules of the user's, all that it mentions.

    A name that is an attribute only, as `x` in `self.x`, says nothing about a global `x`.
    """
    loaded = set(_loaded(function.__code__))
    for namespace, names in global_names(function):
        is_own = namespace is function.__globals__
        for name in names:
            if name in namespace and (name in loaded or not is_own):
                yield namespace, name


def _loaded(code: CodeType) -> Iterator[str]:
    waiting = [code]
    while waiting:
        current = waiting.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield str(instruction.argval)
        waiting.extend(const for const in current.co_consts if isinstance(const, CodeType))
