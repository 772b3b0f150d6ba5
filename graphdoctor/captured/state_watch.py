"""A model at capture -> whether anything that its forward reads from the host is still the same.

Dictionaries, modules' own ones among them, are asked for their version first. Where it is another,
a comparison costs one pass in C over all attributes (`list == list`, which takes identity for
equality and so never looks at a tensor that is in its place). Each tensor is asked for its address.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

import torch

from graphdoctor.captured.global_reads import global_reads
from graphdoctor.captured.module_watch import ModuleWatch
from graphdoctor.captured.signature import is_constant
from graphdoctor.target.state.attributes import attributes, has_walkable_state
from graphdoctor.target.state.dict_versions import DictVersions
from graphdoctor.target.state.variables import is_user_class
from graphdoctor.target.state.walk import Walk, grad_of

_NOTHING = object()
_get = dict.get
_address = torch.Tensor.data_ptr
_contents = operator.attrgetter("cell_contents")


class StateWatch:
    """Remembers what `roots` reach: attributes, containers, globals of the user's, and tensors.

    Keeps the captured tensors' memory alive, so that a replay never reads memory that was freed.
    """

    def __init__(self, roots: dict[str, object]) -> None:
        seen = _Seen()
        for path, value, _ in Walk(roots, with_empty=False):
            seen.add(path, value)
        self.tensors = seen.tensors
        self._tensor_paths = seen.tensor_paths
        self._addresses = [tensor.data_ptr() for tensor in self.tensors]
        self._storages = [tensor.untyped_storage() for tensor in self.tensors]
        self._paths = [path for path, _, _ in seen.containers]
        self._live = [live for _, live, _ in seen.containers]
        self._saved = [saved for _, _, saved in seen.containers]
        self._modules = ModuleWatch(seen.modules)
        self._module_paths = seen.module_paths
        self._empty = seen.empty
        self._attributes = [(own, dict(own)) for own in map(attributes, seen.modules)]
        self._exact_paths = [path for path, _, _ in seen.exact]
        self._exact_in = [container for _, container, _ in seen.exact]
        self._exact_keys = [key for _, _, key in seen.exact]
        self._exact = [container.get(key) for _, container, key in seen.exact]
        self._cell_paths = [path for path, _ in seen.cells]
        self._cells = [cell for _, cell in seen.cells]
        self._in_cells = list(map(_contents, self._cells))
        self._split_by_version()

    def _split_by_version(self) -> None:
        """Sort out what need not be read while the versions of dictionaries stay as they are."""
        pairs = list(zip(self._live, self._saved, strict=True))
        in_dicts = [pair for pair in pairs if type(pair[0]) is dict and pair[0]]
        rest = [pair for pair in pairs if type(pair[0]) is not dict or not pair[0]]
        self._live_dicts, self._saved_dicts = _columns(in_dicts, 2)
        self._live_rest, self._saved_rest = _columns(rest, 2)
        versioned = [*self._modules.own, *self._live_dicts]
        known = set(map(id, versioned))
        exact = list(zip(self._exact_in, self._exact_keys, range(len(self._exact)), strict=True))
        self._dict_exact = _columns([each for each in exact if id(each[0]) in known], 3)
        self._rest_exact = _columns([each for each in exact if id(each[0]) not in known], 3)
        self._dicts = DictVersions(versioned, self._dicts_are_equal)

    def is_same(self) -> bool:
        try:
            return (
                not any(self._modules.empty)
                and self._dicts.are_same()
                and self._live_rest == self._saved_rest
                and self._are_exact(self._rest_exact)
                and all(map(operator.is_, map(_contents, self._cells), self._in_cells))
                and list(map(_address, self.tensors)) == self._addresses
            )
        # A tensor in another's place has no truth value; a deleted attribute cannot be read.
        except Exception:
            return False

    def _dicts_are_equal(self) -> bool:
        return (
            self._modules.values_are_same()
            and self._live_dicts == self._saved_dicts
            and self._are_exact(self._dict_exact)
        )

    def _are_exact(self, columns: list[list[Any]]) -> bool:
        """Equal is not enough for these: 1 == 1.0, and tensors of one element compare by value."""
        containers, keys, places = columns
        if not containers:
            return True
        before = map(self._exact.__getitem__, places)
        return all(map(operator.is_, map(_get, containers, keys), before))

    def difference(self) -> str:
        """What changed, in one sentence; "" where nothing did, whatever objects were replaced."""
        if self._modules.has_new_hook():
            return "a hook was registered on a module, which a replay would not run"
        for path, (own, as_captured) in zip(self._module_paths, self._attributes, strict=True):
            if text := _difference(path, own, as_captured):
                return text
        for path, holder in self._empty:
            if holder:
                return f"{path}.{next(iter(holder))} is new"
        for path, live, saved in zip(self._paths, self._live, self._saved, strict=True):
            if text := _difference(path, live, saved):
                return text
        for index, (live, key) in enumerate(zip(self._exact_in, self._exact_keys, strict=True)):
            now, before = live.get(key, _NOTHING), self._exact[index]
            if now is not before and not _is_as_good(before, now):
                return f"{self._exact_paths[index]} changed from {_short(before)} to {_short(now)}"
            self._exact[index] = now
        for path, cell, before in zip(self._cell_paths, self._cells, self._in_cells, strict=True):
            if cell.cell_contents is not before:
                return f"the variable {path} of an enclosing function was assigned anew"
        for path, tensor, before in zip(
            self._tensor_paths, self.tensors, self._addresses, strict=True
        ):
            if tensor.data_ptr() != before:
                return f"{path} lies in other memory than when it was captured"
        return ""


class _Seen:
    """What is found on the walk."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.tensor_paths: list[str] = []
        self.containers: list[tuple[str, Any, Any]] = []
        self.modules: list[torch.nn.Module] = []
        self.module_paths: list[str] = []
        self.empty: list[tuple[str, Any]] = []
        self.exact: list[tuple[str, dict[Any, Any], Any]] = []
        self.cells: list[tuple[str, CellType]] = []
        self._grads: set[int] = set()

    def add(self, path: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(path, value)
        elif isinstance(value, torch.nn.Module):
            self._add_module(path, value)
        elif isinstance(value, FunctionType):
            for namespace, name in global_reads(value):
                self.exact.append((name, namespace, name))
        elif isinstance(value, CellType):
            self.cells.append((path, value))
        elif isinstance(value, type):
            if is_user_class(value):
                self.containers.append((value.__name__, vars(value), dict(vars(value))))
        elif (saved := _copy(value)) is not None:
            self.containers.append((path, value, saved))
            if isinstance(value, dict):
                self._add_exact(path, value)
        elif has_walkable_state(value) and (own := attributes(value)):
            self.containers.append((path, own, dict(own)))
            self._add_exact(path, own)

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        if (grad := grad_of(tensor)) is not None:
            self._grads.add(id(grad))
        if id(tensor) not in self._grads:
            self.tensors.append(tensor)
            self.tensor_paths.append(path)

    def _add_module(self, path: str, module: torch.nn.Module) -> None:
        self.modules.append(module)
        self.module_paths.append(path)
        own = attributes(module)
        for name in ("_parameters", "_buffers", "_modules"):
            if not own[name]:  # one that is not empty is visited as a dictionary
                self.empty.append((f"{path}.{name}", own[name]))
        self._add_exact(path, own, scalars=not type(module).__module__.startswith("torch.nn."))

    def _add_exact(self, path: str, container: dict[Any, Any], *, scalars: bool = True) -> None:
        for key, value in container.items():
            if isinstance(value, torch.Tensor):
                if value.numel() <= 1:
                    self.exact.append((f"{path}.{key}", container, key))
            elif scalars and type(value) in (bool, int, float):
                self.exact.append((f"{path}.{key}", container, key))


def _copy(value: object) -> object:
    """A copy of a container, one level deep; None for anything else."""
    kinds: tuple[Any, ...] = (dict, list, set, deque, bytearray)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    return None


def _columns(rows: list[Any], count: int) -> list[list[Any]]:
    """Rows of `count` entries, turned into lists of one entry each."""
    return [[row[place] for row in rows] for place in range(count)]


def _difference(path: str, live: Any, saved: Any) -> str:
    try:
        if live == saved:
            return ""
    except Exception:
        pass  # a tensor took another's place
    for key, before, now in _entries(live, saved):
        if now is not before and not _is_as_good(before, now):
            return f"{path}{key} changed from {_short(before)} to {_short(now)}"
    return f"{path} changed"


def _entries(live: Any, saved: Any) -> Iterator[tuple[str, object, object]]:
    if isinstance(saved, dict):
        for key in dict.fromkeys((*saved, *live)):
            name = f".{key}" if isinstance(key, str) else f"[{key!r}]"
            yield name, saved.get(key, _NOTHING), live.get(key, _NOTHING)
    elif isinstance(saved, (list, deque)) and len(live) == len(saved):
        for index, (before, now) in enumerate(zip(saved, live, strict=True)):
            yield f"[{index}]", before, now


def _is_as_good(before: object, now: object) -> bool:
    """Whether a value that is another object cannot be told from the one before."""
    if not is_constant(before) or type(before) is not type(now):
        return False
    return repr(before) == repr(now)


def _short(value: object) -> str:
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"one tensor of {tuple(value.shape)}"
    if not is_constant(value):
        return f"one {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
