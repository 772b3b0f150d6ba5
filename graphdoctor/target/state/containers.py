"""What a container or an object holds, and how to make another like it around other parts.

Lists, tuples, dicts, deques, other mappings, dataclasses and what is registered with torch's pytree are
containers. Another is made without its constructor and its methods, so that it shares nothing that
will be changed, and no code of the user's runs but what they registered.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree

from graphdoctor.target.state.attributes import (
    attributes,
    has_walkable_state,
    is_stateful,
    slots_of,
)
from graphdoctor.target.state.kinds.written import dict_items
from graphdoctor.target.state.plain import SCALARS

_BUILTINS = (tuple, list, dict, OrderedDict, defaultdict, deque)
_NEVER_CONTAINERS = (torch.Tensor, *SCALARS, type, enum.Enum, ModuleType)


@dataclasses.dataclass(slots=True)
class Node:
    """A container or an object: its `content`, with steps of a path, and its `own` attributes.

    `blank` makes another, which `put` fills; without `put` it is immutable, and made of its content.
    `steps` names the attributes that always count among the `parts`; None stands for all of them.
    """

    value: object
    content: list[tuple[str, object]] = dataclasses.field(default_factory=list)
    blank: Callable[[Sequence[object]], object] = lambda parts: None
    put: Callable[[Any, list[object]], object] | None = None
    own: dict[str, object] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, str] | None = None
    is_container: bool = True
    parts: list[tuple[str, object]] = dataclasses.field(default_factory=list)
    ids: list[int] = dataclasses.field(default_factory=list)  # of the content

    def __post_init__(self) -> None:
        self.ids = [id(part) for _, part in self.content]

    def fill(self, made: Any, other: Mapping[int, object]) -> None:
        """Put the content and the attributes in, each as it is now."""
        if self.put is not None and self.ids:
            self.put(made, [other[part] for part in self.ids])
        if not self.own:
            return
        held, in_dict = attributes(made), attributes(self.value)
        for name, part in self.own.items():
            new = other.get(id(part), part)
            if name in in_dict:
                held[name] = new
            else:
                object.__setattr__(made, name, new)

    def choose(self, holding: set[int]) -> None:
        """Settle its parts: attributes that hold no tensor are copied along, unless they count."""
        self.parts = list(self.content)
        for name, part in self.own.items():
            if self.steps is None or name in self.steps:
                self.parts.append((f".{name}" if self.steps is None else self.steps[name], part))
            elif isinstance(part, torch.Tensor) or id(part) in holding:
                self.parts.append((f".{name}", part))
        if self.content and self.own:  # items that can also be read as attributes
            seen = set(self.ids)
            own = self.parts[len(self.content) :]
            self.parts[len(self.content) :] = [p for p in own if id(p[1]) not in seen]


def open_node(value: object, *, into_objects: bool) -> Node | None:
    """What a value holds, and how another like it is made; None for a leaf."""
    kind: Any = type(value)
    if kind not in _BUILTINS:
        if isinstance(value, _NEVER_CONTAINERS) or is_stateful(value):
            return None
        if (registered := _pytree.SUPPORTED_NODES.get(kind)) is not None:
            return _open_registered(value, registered)
        if not _may_be_copied(kind):
            return None
    if isinstance(value, tuple):
        names = getattr(kind, "_fields", None)
        steps = [f".{n}" for n in names] if names else [f"[{i}]" for i in range(len(value))]
        content = list(zip(steps, value, strict=True))
        return Node(value, content, lambda parts: _tuple(kind, parts), None, *_own(value))
    if isinstance(value, list):
        return Node(
            value, list(_numbered(list.__iter__(value))), lambda _: list.__new__(kind),
            list.extend, *_own(value),
        )  # fmt: skip
    if isinstance(value, dict):
        return _open_dict(value)
    if isinstance(value, deque):
        return Node(
            value, list(_numbered(deque.__iter__(value))), lambda _: _deque(kind, value.maxlen),
            deque.extend, *_own(value),
        )  # fmt: skip
    if isinstance(value, MappingProxyType):
        keys, items = list(value), [(_key_step(key), part) for key, part in value.items()]
        return Node(value, items, lambda parts: kind(dict(zip(keys, parts, strict=True))))
    return _open_object(value, into_objects)


def _open_registered(value: object, registered: Any) -> Node | None:
    """What torch's pytree was told of, such as the outputs of transformers' models."""
    try:
        parts, context = registered.flatten_fn(value)
        parts = list(parts)
        with_keys = registered.flatten_with_keys_fn
        if isinstance(value, Mapping) and len(value) == len(parts):
            steps = list(map(_key_step, value))
        elif with_keys is not None:
            steps = [_entry_step(entry) for entry, _ in with_keys(value)[0]]
        else:
            steps = [f"[{index}]" for index in range(len(parts))]
    except Exception:  # a library's own code
        return None
    content = list(zip(steps, parts, strict=True))
    return Node(value, content, lambda parts: registered.unflatten_fn(list(parts), context))


def _open_dict(value: dict[Any, Any]) -> Node:
    kind, items = type(value), dict_items(value)
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict

    def blank(_: Sequence[object]) -> object:
        made = base.__new__(kind)
        if isinstance(made, defaultdict):
            made.default_factory = value.default_factory  # type: ignore[attr-defined]
        return made

    def put(made: Any, parts: list[object]) -> None:
        for (key, _), part in zip(items, parts, strict=True):
            base.__setitem__(made, key, part)

    return Node(value, [(_key_step(key), part) for key, part in items], blank, put, *_own(value))


def _open_object(value: object, into_objects: bool) -> Node | None:
    """An object by its attributes: those of a mapping that hold its items count as the items."""
    own, _ = _own(value)
    steps: dict[str, str] | None = None
    if isinstance(value, Mapping):
        steps = {name: "" for name, part in own.items() if _holds_items_of(value, part)} or None
    elif dataclasses.is_dataclass(value):
        steps = {field.name: f".{field.name}" for field in dataclasses.fields(value)}
        own = {**{name: own[name] for name in steps if name in own}, **own}
    is_container = steps is not None
    if not is_container and not (into_objects and _is_state(value, own)):
        return None
    kind: Any = type(value)
    make = _maker(kind)
    if make is None:
        return None
    return Node(value, [], make, lambda made, _: None, own, steps, is_container)


def _holds_items_of(value: Mapping[Any, Any], part: object) -> bool:
    try:
        return isinstance(part, Mapping) and list(part) == list(value)
    except Exception:  # both may be the user's code
        return False


def _is_state(value: object, own: Mapping[str, object]) -> bool:
    if not own:
        return False
    return has_walkable_state(value) or any(isinstance(p, torch.Tensor) for p in own.values())


def _own(value: object) -> tuple[dict[str, object], Mapping[str, str] | None]:
    """An object's own attributes, of which none counts unless it holds a tensor."""
    if type(value) in _BUILTINS:
        return {}, {}
    return {**attributes(value), **dict(slots_of(value))}, {}


@cache
def _may_be_copied(kind: type) -> bool:
    """Not where a class says itself how it is copied, or looks after something until it is gone."""
    copies = getattr(kind, "__copy__", None)
    is_own = getattr(copies, "__module__", None) not in (None, "collections")
    return not (copies is not None and is_own) and not hasattr(kind, "__del__")


@cache
def _maker(kind: type) -> Callable[[Sequence[object]], object] | None:
    """Makes an empty object of a class, past its constructor; None where it is not Python's alone."""
    base: Any = SimpleNamespace if issubclass(kind, SimpleNamespace) else object
    try:
        base.__new__(kind)
    except TypeError:
        return None
    return lambda _: base.__new__(kind)


def _tuple(kind: Any, parts: Sequence[object]) -> object:
    try:
        return tuple.__new__(kind, parts)
    except TypeError:  # what torch.max returns, and torch.Size
        return kind(parts)


def _deque(kind: Any, maxlen: int | None) -> object:
    made = deque.__new__(kind)
    deque.__init__(made, (), maxlen)
    return made


def _numbered(parts: Iterable[object]) -> Iterator[tuple[str, object]]:
    return ((f"[{index}]", part) for index, part in enumerate(parts))


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _entry_step(entry: Any) -> str:
    if isinstance(entry, _pytree.GetAttrKey):
        return f".{entry.name}"
    return f"[{entry.idx}]" if isinstance(entry, _pytree.SequenceKey) else _key_step(entry.key)
