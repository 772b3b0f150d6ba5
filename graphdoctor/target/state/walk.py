"""Named root objects -> every object whose state they can reach, each once, with its path."""

from __future__ import annotations

import queue
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import (
    Container,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from contextvars import Context, ContextVar
from enum import Enum
from functools import cache, partial, partialmethod
from types import (
    CellType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphdoctor.target.state.attributes import (
    attributes,
    has_walkable_state,
    is_of_library,
    slots_of,
)
from graphdoctor.target.state.behind import LEADING_ON, behind
from graphdoctor.target.state.plain import SCALARS, is_data, is_memory
from graphdoctor.target.state.variables import class_members, global_names, is_user_class, names_in
from graphdoctor.values.locations import is_library

# These have no attributes of their own; a subclass of them may.
BUILTIN_CONTAINERS = frozenset({dict, list, tuple, set, frozenset, deque})
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_FLATTENED = frozenset({"_parameters", "_buffers", "_modules"})
# `register_hook`, `register_post_accumulate_grad_hook`
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Visit(NamedTuple):
    """One object. `shown` is false for a library's inner parts, which mean nothing to a reader."""

    path: str
    value: object
    shown: bool = True


class Walk:
    """One walk over an object graph; linear, and without recursion however deep the graph is."""

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        with_empty: bool = True,
        without: Iterable[object] = (),
        leaves: Container[int] = (),
    ) -> None:
        self._leaves = leaves  # ids of objects that are visited, and not looked into
        self._with_empty = with_empty  # a module's empty dictionaries of hooks, a dozen of them
        visits = [Visit(name, root) for name, root in roots.items()]
        # Optimizer state is named after parameters, so whatever holds the parameters comes first.
        self._late = deque(visit for visit in visits if _is_optimizer(visit.value))
        self._stack = [visit for visit in reversed(visits) if not _is_optimizer(visit.value)]
        # Holds the objects, so that no id is used twice.
        self._seen: dict[int, object] = {id(value): value for value in without}
        self._tensor_names: dict[int, str] = {}

    def __iter__(self) -> Iterator[Visit]:
        while self._stack or self._late:
            deferred = not self._stack
            visit = self._late.popleft() if deferred else self._stack.pop()
            if isinstance(visit.value, SCALARS):
                yield visit
            elif id(visit.value) not in self._seen:
                if _is_optimizer(visit.value) and not deferred:
                    self._late.append(visit)
                    continue
                self._seen[id(visit.value)] = visit.value
                if isinstance(visit.value, torch.Tensor):
                    self._tensor_names[id(visit.value)] = visit.path
                yield visit
                if id(visit.value) not in self._leaves:
                    self._stack.extend(reversed(list(self.children(visit))))

    def children(self, visit: Visit) -> Iterable[Visit]:
        """What it leads to directly, as it is now, whether or not the walk has been there."""
        path, value, shown = visit
        if isinstance(value, torch.Tensor):
            return _of_tensor(path, value)
        if isinstance(value, torch.jit.ScriptModule):
            return _of_script_module(path, value)
        if isinstance(value, torch.nn.Module):
            return _of_module(path, value, with_empty=self._with_empty)
        if isinstance(value, dict):
            return [*self._of_dict(path, value, shown), *_of_object(path, value)]
        if isinstance(value, (list, tuple, deque, set, frozenset)):
            return [*_of_sequence(path, value), *_of_object(path, value)]
        if isinstance(value, Context):
            return [Visit(f"{path}[{one.name}]", held) for one, held in value.items()]
        if isinstance(value, ContextVar):
            return _of_context(path, value)
        if isinstance(value, (FunctionType, MethodType, CellType, partial, partialmethod)):
            return _of_callable(path, value)
        if isinstance(value, type):
            return _of_class(path, value)
        if isinstance(value, Enum):
            return _of_enum_member(path, value)
        if isinstance(value, ModuleType) or _is_run_by_a_library(value):
            return ()
        if isinstance(value, LEADING_ON):
            return [Visit(path, behind, shown) for behind in behind(value)]
        if not has_walkable_state(value):
            return _of_library_object(path, value)
        return _of_object(path, value)

    def _of_dict(self, path: str, value: dict[object, object], shown: bool) -> Iterator[Visit]:
        prefix = path if shown or not path.endswith(tuple(_FLATTENED)) else path.rpartition(".")[0]
        for index, (key, child) in enumerate(dict_items(value)):
            yield Visit(prefix + self._key(key, index), child)
        for index, (key, _) in enumerate(dict_items(value)):
            if not isinstance(key, SCALARS):
                yield Visit(f"{path}.keys[{index}]", key, False)

    def _key(self, key: object, index: int) -> str:
        if isinstance(key, str):
            return f".{key}"
        if isinstance(key, SCALARS):
            return f"[{key!r}]"
        return f"[{self._tensor_names.get(id(key), index)}]"


def dict_items(value: dict[object, object]) -> list[tuple[object, object]]:
    """Items in order, past any override: a subclass's items() may be user code, or raise."""
    return list(OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value))


def _is_run_by_a_library(value: object) -> bool:
    """A running thread of an installed package, such as tqdm's monitor: what it notes of itself is no step's doing."""
    if not isinstance(value, threading.Thread) or value is threading.current_thread():
        return False
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return file is not None and is_library(file) and value.is_alive()


def _is_optimizer(value: object) -> bool:
    return isinstance(value, torch.optim.Optimizer)


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """`.grad` where there can be one; asking an intermediate tensor would warn."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def _of_tensor(path: str, value: torch.Tensor) -> Iterator[Visit]:
    grad = grad_of(value)
    if grad is not None:
        yield Visit(f"{path}.grad", grad)
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            yield Visit(f"{path}.{name}", getattr(value, name))
    for name, child in list(attributes(value).items()):
        # Dynamo's notes on a tensor, such as that its address stays, are for torch.compile alone.
        yield Visit(f"{path}.{name}", child, not name.startswith("_dynamo_"))
    for name in HOOKS_OF_TENSORS:
        if (hooks := getattr(value, name)) is not None:
            yield Visit(f"{path}.{name}", hooks, False)


def _of_script_module(path: str, value: torch.jit.ScriptModule) -> Iterator[Visit]:
    for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
        yield Visit(f"{path}.{name}", tensor)


def _of_module(path: str, value: torch.nn.Module, *, with_empty: bool) -> Iterator[Visit]:
    for name, child in list(attributes(value).items()):
        is_internal = name in _MODULE_INTERNALS
        if with_empty or not is_internal or child:
            yield Visit(f"{path}.{name}", child, not is_internal)
    yield from _of_class_of(value)


def _of_sequence(path: str, value: Iterable[object]) -> Iterator[Visit]:
    items = list(value)
    if is_data(items):
        return
    for index, child in enumerate(items):
        yield Visit(f"{path}[{index}]", child)


def _of_object(path: str, value: object) -> Iterator[Visit]:
    kind = type(value)
    if kind in BUILTIN_CONTAINERS:
        return
    found = list(attributes(value).items())
    if kind is OrderedDict and not found:  # a module has a dozen of them for hooks
        return
    if _is_optimizer(value):
        # Parameters get a plain name from here when no module has named them yet.
        found.sort(key=lambda item: item[0] != "param_groups")
    for name, child in found:
        yield Visit(f"{path}.{name}", child)
    for name, child in slots_of(value):
        yield Visit(f"{path}.{name}", child)
    yield from _of_class_of(value)


def _of_enum_member(path: str, value: Enum) -> Iterator[Visit]:
    for name, child in list(attributes(value).items()):
        if not name.startswith("_"):
            yield Visit(f"{path}.{name}", child)


def _of_library_object(path: str, value: object) -> Iterator[Visit]:
    """Numbers, texts and memory that an object of Python's library has: a logger's, a thread's, a queue's."""
    if (
        isinstance(value, queue.Queue) and threading.active_count() == 1
    ):  # else it is another's, too
        yield Visit(path, attributes(value).get("queue"))
    if is_of_library(value):
        for name, child in list(attributes(value).items()):
            if issubclass(type(child), SCALARS) or is_memory(
                child
            ):  # without asking what it says of itself
                yield Visit(f"{path}.{name}", child)


def _of_class_of(value: object) -> Iterator[Visit]:
    for cls in _user_classes(type(value)):  # type: ignore[arg-type]
        yield Visit(cls.__name__, cls, False)


@cache
def _user_classes(kind: type) -> tuple[type, ...]:
    return tuple(cls for cls in kind.__mro__ if is_user_class(cls))


def _of_context(path: str, value: ContextVar[object]) -> Iterator[Visit]:
    with suppress(LookupError):  # one that nobody has set
        yield Visit(path, value.get())


def _of_class(path: str, value: type) -> Iterator[Visit]:
    if is_user_class(value):
        yield from _of_class_of(value)  # where the class has a class of the user's
        for name, member in class_members(value):
            yield Visit(f"{path}.{name}", member)


def _of_callable(path: str, value: object) -> Iterator[Visit]:
    if isinstance(value, CellType):
        yield from [] if _is_empty(value) else [Visit(path, value.cell_contents)]
    elif isinstance(value, MethodType):
        # The object is what people know; the function matters for the globals it names.
        yield Visit(_stem(path), value.__self__)
        yield Visit(path, value.__func__, False)
    elif isinstance(value, (partial, partialmethod)):
        yield Visit(f"{path}.func", value.func)
        yield Visit(f"{path}.args", value.args)
        yield Visit(f"{path}.keywords", value.keywords)
    elif isinstance(value, FunctionType):
        yield from variables_of(value)
        yield Visit(f"{path}.defaults", value.__defaults__ or (), False)
        yield Visit(f"{path}.kwdefaults", value.__kwdefaults__ or {}, False)
        for name, child in list(vars(value).items()):
            yield Visit(f"{path}.{name}", child)


def variables_of(function: FunctionType) -> Iterator[Visit]:
    """What a function uses from outside, by its variables' own names: closure, then globals."""
    yield from (
        Visit(n, c) for n, c in zip(names_in(function), function.__closure__ or (), strict=True)
    )
    for namespace, names in global_names(function):
        yield from (Visit(name, namespace[name]) for name in names if name in namespace)


def _is_empty(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _stem(path: str) -> str:
    return path.rpartition(".")[0] or path
