"""Dictionaries, lists, tuples, deques and sets, with the attributes that their subclasses have."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from graphdoctor.target.state.attributes import SCALARS, is_data
from graphdoctor.target.state.kinds.kind import (
    MISSING,
    Digest,
    Node,
    Parts,
    Restore,
    Surroundings,
    Visit,
    dict_of,
    key_step,
    put_items,
    saved_dict,
)
from graphdoctor.target.state.kinds.objects import Object
from graphdoctor.target.state.paths import By, StatePath
from graphdoctor.target.state.saved_tensor import Saving

# More items than this are a data set, which costs too much to look at after every step.
_DATA = 1 << 22
_BUILTINS = frozenset({dict, defaultdict, list, tuple, deque, set, frozenset, OrderedDict})
_FLATTENED = frozenset(
    {"_parameters", "_buffers", "_modules"}
)  # of modules, whose attributes they are


class Container(Object):
    """The built-in containers have no attributes; a subclass may."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._is_builtin = cls in _BUILTINS
        self.has_own = not self._is_builtin or cls is OrderedDict

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        yield from self.items(visit, walk)
        if self.has_own:
            yield from self.parts(visit, walk)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        yield self.saved_items(value)
        if self.has_own:
            yield from self.save_parts(value)

    def open(self, value: Any, *, into_objects: bool) -> Node | None:
        if self._is_builtin:  # torch's pytree was told of these, too
            return self.node(value, into_objects)
        return super().open(value, into_objects=into_objects)

    def own(self, value: object) -> dict[str, object]:
        return super().own(value) if self.has_own else {}

    def digest(self, value: Any) -> Digest:
        return Digest(len(value), "len")

    def items(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        for index, child in enumerate(list(visit.value)):  # type: ignore[call-overload]
            yield Visit(visit.path.item(index), child)

    def saved_items(self, value: Any) -> Restore:
        return partial(self.put, value, self.types[0](value))

    def put(self, held: Any, items: Any) -> None:
        """Let it hold these, past any override."""


class Dict(Container):
    types: ClassVar[tuple[type, ...]] = (dict,)

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.read: Any = dict_of(cls).items

    def items(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, value, shown = visit
        prefix = path
        if not shown and path.name in _FLATTENED and path.parent is not None:
            prefix = path.parent
        objects: list[Visit] = []
        for index, (key, child) in enumerate(list(self.read(value))):
            if isinstance(key, SCALARS):
                yield Visit(prefix.item(key), child)
            else:
                yield Visit(prefix.under(index, walk.name_of(key)), child)
                objects.append(Visit(path.attribute("keys").item(index), key, False))
        yield from objects

    def write(self, value: Any, path: StatePath, new: object) -> None:
        key: Any = path.name
        if path.by is By.OBJECT:
            key = next(islice(value, key.place, None), MISSING)
        if path.by is By.ATTRIBUTE:
            super().write(value, path, new)
        elif key in value:
            dict.__setitem__(value, key, new)

    def saved_items(self, value: Any) -> Restore:
        return saved_dict(value)

    def node(self, value: Any, into_objects: bool) -> Node:
        pairs = list(self.read(value))
        content = [(key_step(key), part) for key, part in pairs]
        keys = [key for key, _ in pairs]
        make, put = partial(self.blank, value), partial(self.fill, keys)
        return Node(value, content, make, put, self.own(value))

    def fill(self, keys: list[Any], made: Any, parts: list[object]) -> None:
        put_items(made, list(zip(keys, parts, strict=True)))

    def blank(self, value: Any, _: object) -> object:
        made: Any = dict_of(self.cls).__new__(self.cls)
        if isinstance(made, defaultdict):
            made.default_factory = value.default_factory
        return made


class Sequence(Container):
    """Of many plain values, none is state by itself: they are one value."""

    def items(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        if not is_data(visit.value):  # type: ignore[arg-type]
            yield from super().items(visit, walk)

    def digest(self, value: Any) -> Digest:
        if not is_data(value):
            return super().digest(value)
        alike = f" of {hash(tuple(value)):x}" if len(value) <= _DATA else ""
        return Digest(f"{len(value)} values{alike}", "contents")

    def write(self, value: Any, path: StatePath, new: object) -> None:
        kind: Any = self.types[0]
        if path.by is not By.ITEM:
            super().write(value, path, new)
        elif kind is not tuple and path.name in range(len(value)):
            kind.__setitem__(value, path.name, new)

    def node(self, value: Any, into_objects: bool) -> Node:
        make = partial(self.blank, value)
        return Node(value, self.content(value), make, self.put, self.own(value))

    def content(self, value: Any) -> Parts:
        items: Any = self.types[0]
        return [(f"[{index}]", part) for index, part in enumerate(items.__iter__(value))]

    def blank(self, value: Any, parts: Any) -> object:
        """An empty one; of what cannot be filled, one with these parts."""
        return list.__new__(self.cls)


class List(Sequence):
    types = (list,)

    def put(self, held: Any, items: Any) -> None:
        list.__setitem__(held, slice(None), items)


class Deque(Sequence):
    types = (deque,)

    def put(self, held: Any, items: Any) -> None:
        deque.clear(held)
        deque.extend(held, items)

    def blank(self, value: Any, parts: Any) -> object:
        made: Any = deque.__new__(self.cls)
        deque.__init__(made, (), value.maxlen)
        return made


class Set(Container):
    types = (set,)

    def node(self, value: Any, into_objects: bool) -> None:
        """A leaf: its items have no places."""

    def put(self, held: Any, items: Any) -> None:
        if held != items:
            set.clear(held)
            set.update(held, items)


class Fixed(Container):
    """What cannot be written into; a subclass's attributes are saved where they are the user's."""

    types: ClassVar[tuple[type, ...]] = (frozenset,)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        if self.has_own and self.is_state:
            yield from self.save_parts(value)

    def node(self, value: Any, into_objects: bool) -> Node | None:
        return None


class Tuple(Sequence, Fixed):
    types = (tuple,)

    def node(self, value: Any, into_objects: bool) -> Node:
        return replace(super().node(value, into_objects), put=None)

    def content(self, value: Any) -> Parts:
        names = getattr(self.cls, "_fields", None)
        if names is None:
            return super().content(value)
        return [(f".{name}", part) for name, part in zip(names, value, strict=True)]

    def blank(self, value: Any, parts: Any) -> object:
        try:
            return tuple.__new__(self.cls, parts)
        except TypeError:  # what torch.max returns, and torch.Size
            return self.cls(parts)
