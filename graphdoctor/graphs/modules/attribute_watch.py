"""Modules at the time of a capture -> whether their attributes, parameters, buffers and submodules are the same."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from graphdoctor.graphs.modules.arguments import PLAIN

Held = dict[Any, Any]

# The rest of what torch keeps in each module says nothing about its forward.
_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"}
_OBJECTS = (torch.Tensor, torch.nn.Module)
_NUMBERS = (bool, int, float, complex)
_NOTHING = object()
_get = dict.get
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)


class AttributeWatch:
    """Compares in a few passes in C, over flat lists that are made once.

    `list == list` takes identity for equality, and so never looks into a tensor that is in its
    place. Plain values, and flat lists of them, are watched, tensors and modules; no other objects.
    """

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._own: list[Held] = []
        self._names: list[list[str]] = []
        self._read: list[operator.itemgetter[Any]] = []
        self._values: list[Any] = []
        self._list_paths: list[str] = []
        self._lists_in: list[Held] = []
        self._list_keys: list[str] = []
        self._lists: list[object] = []
        self._closed: dict[str, Held] = {}
        self._counts: list[int] = []
        self._holder_paths: list[str] = []
        self._holders: list[Held] = []
        self._held: list[Held] = []
        self._exact_paths: list[str] = []
        self._exact_in: list[Held] = []
        self._exact_keys: list[str] = []
        self._exact: list[object] = []

    @property
    def dicts(self) -> list[Held]:
        """All that is read; none of them is empty."""
        return [*self._own, *self._holders]

    def add(self, path: str, own: Held, *, is_torchs: bool) -> None:
        """Watch a module's own attributes, its `__dict__`; torch's own modules take any number."""
        names = [name for name in own if name not in _OF_TORCH and _is_plain(own[name])]
        values = tuple(own[name] for name in names)
        self._paths.append(path)
        self._own.append(own)
        self._names.append(names)
        self._read.append(operator.itemgetter(*names))
        self._values.append(values if len(names) > 1 else values[0])
        for name, value in own.items():
            if isinstance(value, _OBJECTS) or (type(value) in _NUMBERS and not is_torchs):
                self._add_exact(path, own, name)

    def add_lists(self, path: str, own: Held) -> None:
        """Watch the content of lists of plain values, which changes without a write to `own`."""
        for name, value in own.items():
            if type(value) is list and name not in _OF_TORCH and all(map(_is_plain, value)):
                self._list_paths.append(joined(path, name))
                self._lists_in.append(own)
                self._list_keys.append(name)
                self._lists.append(list(value))

    def close(self, path: str, own: Held) -> None:
        """Watch that no attribute is new."""
        self._closed[path] = own
        self._counts.append(len(own))

    def add_holder(self, path: str, holder: Held) -> None:
        """Watch the parameters, buffers or submodules of the module at `path`; there are some."""
        self._holder_paths.append(path)
        self._holders.append(holder)
        self._held.append(dict(holder))
        for key, value in holder.items():
            if isinstance(value, torch.Tensor) and value.numel() <= 1:
                self._add_exact(path, holder, key)

    def _add_exact(self, path: str, container: Held, key: str) -> None:
        self._exact_paths.append(joined(path, key))
        self._exact_in.append(container)
        self._exact_keys.append(key)
        self._exact.append(container[key])

    def is_same(self) -> bool:
        """Raises where an attribute is gone, or a tensor is in another's place."""
        return (
            list(map(_call, self._read, self._own)) == self._values
            and list(map(len, self._closed.values())) == self._counts
            and self._holders == self._held
            and list(map(_get, self._lists_in, self._list_keys)) == self._lists
            and self._are_exact()
        )

    def _are_exact(self) -> bool:
        """Equal is not enough for these: 1 == 1.0, and tensors of one element compare by value."""
        now = list(map(_get, self._exact_in, self._exact_keys))
        if all(map(operator.is_, now, self._exact)):
            return True
        if not all(map(_is_as_good, self._exact, now)):
            return False
        self._exact = now
        return True

    def changes(self) -> Iterator[str]:
        """What is not the same, in words."""
        yield from self._changed_values()
        for path, holder, held in zip(self._holder_paths, self._holders, self._held, strict=True):
            for key in dict.fromkeys((*held, *holder)):
                if holder.get(key, _NOTHING) is not held.get(key, _NOTHING):
                    yield f"{joined(path, key)} is another object than the captured one"
        for path, own, key, before in zip(
            self._exact_paths, self._exact_in, self._exact_keys, self._exact, strict=True
        ):
            if not _is_as_good(before, now := own.get(key, _NOTHING)):
                yield _changed(path, before, now)
        for (path, own), count in zip(self._closed.items(), self._counts, strict=True):
            if len(own) != count:
                yield f"{path} has more or fewer attributes than when it was captured"

    def _changed_values(self) -> Iterator[str]:
        for path, own, names, values in zip(
            self._paths, self._own, self._names, self._values, strict=True
        ):
            for name, before in zip(names, values if len(names) > 1 else (values,), strict=True):
                if _is_other(before, now := own.get(name, _NOTHING)):
                    yield _changed(joined(path, name), before, now)
        for path, own, key, before in zip(
            self._list_paths, self._lists_in, self._list_keys, self._lists, strict=True
        ):
            if _is_other(before, now := own.get(key, _NOTHING)):
                yield _changed(path, before, now)


def joined(path: str, key: object) -> str:
    """A name inside the module at `path`."""
    return f"{path}.{key}" if path else str(key)


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(isinstance(part, PLAIN) for part in value)
    return isinstance(value, PLAIN)


def _is_other(before: object, now: object) -> bool:
    try:
        return before is not now and bool(before != now)
    except Exception:  # an array or a tensor took the place of a plain value
        return True


def _is_as_good(before: object, now: object) -> bool:
    """Whether a value that may be another object cannot be told from the one before."""
    if before is now:
        return True
    return type(before) is type(now) in _NUMBERS and repr(before) == repr(now)


def _changed(path: str, before: object, now: object) -> str:
    if isinstance(before, _OBJECTS):
        return f"{path} is another object than the captured one"
    return f"{path} changed from {_short(before)} to {_short(now)}"


def _short(value: object) -> str:
    if value is _NOTHING:
        return "nothing"
    if not _is_plain(value) and type(value) is not list:
        return f"one {type(value).__name__}"  # reading a tensor would wait for the GPU
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
