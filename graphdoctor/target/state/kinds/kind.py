"""What is done with every family of objects: look inside, save, restore, compare two moments, make another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import is_
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from graphdoctor.target.state.attributes import STREAMS, attributes, slots, slots_of
from graphdoctor.target.state.paths import Measure, StatePath
from graphdoctor.target.state.saved_tensor import Saving

Parts = list[tuple[str, object]]


@dataclass(slots=True)
class Node:
    """A container or an object: its `content`, with steps of a path, and its `own` attributes.

    `make` gives another, past constructor and methods, so that it shares nothing that will be changed and no
    code of the user's runs. `put` fills it; without `put` it is immutable, and made of its content. `steps`
    names the attributes that always count among the `parts`; None stands for all of them.
    """

    value: object
    content: Parts
    make: Callable[[Sequence[object]], object]
    put: Callable[[Any, list[object]], object] | None = None
    own: Mapping[str, object] = field(default_factory=dict)
    steps: Mapping[str, str] | None = field(default_factory=dict)
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [*self.content, *self.own.items()]

    @property
    def is_container(self) -> bool:
        """Another is made whether or not what it holds is another."""
        return self.steps is not None

    def choose(self, holding: Container[int]) -> None:
        """Settle its parts: attributes that hold no tensor are copied along, unless they count."""
        self.parts = list(self.content)
        items = {id(part) for _, part in self.content}  # some can also be read as attributes
        for name, part in self.own.items():
            is_counted = self.steps is None or isinstance(part, torch.Tensor) or id(part) in holding
            step = (self.steps or {}).get(name, f".{name}" if is_counted else None)
            if step is not None and id(part) not in items:
                self.parts.append((step, part))

    def another(self, other: Mapping[int, object]) -> object:
        """One like it, for which `other` has what its content is now."""
        return self.make(() if self.put else [other[id(part)] for _, part in self.content])

    def fill(self, made: Any, other: Mapping[int, object]) -> None:
        """Put the content and the attributes in, each as it is now."""
        if self.put is not None and self.content:
            self.put(made, [other[id(part)] for _, part in self.content])
        if self.own:
            held, in_dict = attributes(made), attributes(self.value)
            for name, part in self.own.items():
                new = other.get(id(part), part)
                if name in in_dict:
                    held[name] = new
                else:
                    object.__setattr__(made, name, new)


def key_step(key: object) -> str:
    """How a key reads in a path of an input: ".mask", but "[0]"."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


Restore = Callable[[], object]
Value = str | int | float | complex | bytes | bool | None


class Visit(NamedTuple):
    """One object. `shown` is false for a library's inner parts, which mean nothing to a reader."""

    path: StatePath
    value: object
    shown: bool = True


class Digest(NamedTuple):
    """Differs where the state does. A container is known by its length, memory by its contents."""

    value: Value
    measure: Measure | None = None

    def path_of(self, path: StatePath) -> StatePath:
        return path if self.measure is None else path.measured(self.measure)


class Surroundings(Protocol):
    """What a walk knows when it looks into an object."""

    with_empty: bool  # whether it visits a module's empty dictionaries of hooks, a dozen of them

    def name_of(self, key: object) -> str | None:
        """The path of a tensor that the walk has visited."""

    def variable(self, name: str, holder: object) -> StatePath:
        """A variable or a class by its own name; the second one of a name has a number."""


class Kind:
    """One type of objects, as its family treats it. Here: nothing is known of it.

    `types` are those of the family; there is one instance for each type that is met, so that what can
    be known of a type is found once.
    """

    types: ClassVar[tuple[type, ...]] = ()
    is_scalar = False  # holds nothing, and is visited wherever it is met
    names_keys = False  # as a key of a dictionary, it is named by its own path
    is_late = False  # is named after what others hold, so it is visited after all others

    def __init__(self, cls: type) -> None:
        self.cls = cls
        # Whose position cannot be restored. Streams in memory hold no state of steps.
        self.is_iterator = issubclass(cls, Iterator) and not issubclass(cls, STREAMS)

    @classmethod
    def includes(cls, kind: type, value: object) -> bool:
        """Whether a type belongs to the family; `value` is an object of that type."""
        return issubclass(kind, cls.types)

    def children(self, visit: Visit, walk: Surroundings) -> Iterable[Visit]:
        """What it leads to directly, as it is now."""
        return ()

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        """Functions that put back what the object holds itself, in place and past any override."""
        return ()

    def write(self, value: Any, path: StatePath, new: object) -> None:
        """Replace a child, past any override; do nothing if there is no such child."""
        name: Any = path.name
        if name in (own := attributes(value)):
            own[name] = new

    def open(self, value: Any, *, into_objects: bool) -> Node | None:
        """What it holds as an input or output, and how another is made; None of a leaf.

        Without `into_objects`, of containers alone.
        """
        return None

    def digest(self, value: Any) -> Digest | None:
        """None of what only leads to other values."""
        return None


MISSING = object()


def dict_of(cls: type) -> type[dict[Any, Any]]:
    """The class whose methods are called, past any override of a subclass, which may be user code, or raise."""
    return OrderedDict if issubclass(cls, OrderedDict) else dict


def dict_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Items in order."""
    return list(dict_of(type(value)).items(value))


def put_items(held: dict[Any, Any], items: Sequence[tuple[Any, Any]]) -> None:
    """Keys, values and their order. Writes only when something differs."""
    if not items and not dict.__len__(held):  # as a dozen of each module's
        return
    kind = dict_of(type(held))
    if len(items) == kind.__len__(held) and all(map(is_, chain(*kind.items(held)), chain(*items))):
        return
    kind.clear(held)
    for key, value in items:
        kind.__setitem__(held, key, value)


def saved_dict(held: dict[Any, Any]) -> Restore:
    return partial(put_items, held, dict_items(held))


def saved_names(namespace: dict[str, object], names: tuple[str, ...]) -> Restore:
    """Some names of a namespace, whether they exist yet or not."""
    values = {name: namespace.get(name, MISSING) for name in names}

    def restore() -> None:
        for name, value in values.items():
            if value is MISSING:
                namespace.pop(name, None)
            elif namespace.get(name, MISSING) is not value:
                namespace[name] = value

    return restore


def saved_slots(held: object) -> Restore:
    """The slots of an object, unset ones included; also of a frozen dataclass."""
    values = dict(slots_of(held))

    def restore() -> None:
        for name, slot in slots(held).items():
            if name in values:
                slot.__set__(held, values[name])
            else:
                with suppress(AttributeError):
                    slot.__delete__(held)

    return restore
