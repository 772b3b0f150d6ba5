"""Dictionaries, lists, tuples, deques and sets, with the attributes that their subclasses have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from graphdoctor.target.state.kinds.kind import Digest, Restore, Surroundings, Visit
from graphdoctor.target.state.kinds.objects import Object
from graphdoctor.target.state.kinds.written import dict_items, saved_dict
from graphdoctor.target.state.plain import SCALARS, is_data
from graphdoctor.target.state.saved_tensor import Saving

# More items than this are a data set, which costs too much to look at after every step.
_DATA = 1 << 22
_BUILTINS = frozenset({dict, list, tuple, set, frozenset, deque})
_FLATTENED = frozenset(
    {"_parameters", "_buffers", "_modules"}
)  # of modules, whose attributes they are


class Container(Object):
    """The built-in containers have no attributes; a subclass may."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._is_builtin = cls in _BUILTINS

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        yield from self.items(visit, walk)
        if not self._is_builtin:
            yield from self.parts(visit, walk)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        yield self.saved_items(value)
        if not self._is_builtin:
            yield from self.save_parts(value)

    def digest(self, value: Any) -> Digest:
        return Digest(len(value), "len")

    def items(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        for index, child in enumerate(list(visit.value)):  # type: ignore[call-overload]
            yield Visit(visit.path.item(index), child)

    def saved_items(self, held: Any) -> Restore:
        return lambda: None


class Dict(Container):
    types = (dict,)

    def items(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, value, shown = visit
        prefix = path
        if not shown and path.name in _FLATTENED and path.parent is not None:
            prefix = path.parent
        items = dict_items(value)  # type: ignore[arg-type]
        objects: list[Visit] = []
        for index, (key, child) in enumerate(items):
            if isinstance(key, SCALARS):
                yield Visit(prefix.item(key), child)
            else:
                yield Visit(prefix.under(index, walk.name_of(key)), child)
                objects.append(Visit(path.attribute("keys").item(index), key, False))
        yield from objects

    def saved_items(self, held: Any) -> Restore:
        return saved_dict(held)


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


class List(Sequence):
    types = (list,)

    def saved_items(self, held: Any) -> Restore:
        return partial(list.__setitem__, held, slice(None), list(held))


class Deque(Sequence):
    types = (deque,)

    def saved_items(self, held: Any) -> Restore:
        items = list(held)

        def restore() -> None:
            deque.clear(held)
            deque.extend(held, items)

        return restore


class Set(Container):
    types = (set,)

    def saved_items(self, held: Any) -> Restore:
        items = set(held)

        def restore() -> None:
            if held != items:
                set.clear(held)
                set.update(held, items)

        return restore


class Fixed(Container):
    """What cannot be written into; a subclass's attributes are saved where they are the user's."""

    types: ClassVar[tuple[type, ...]] = (frozenset,)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        if not self._is_builtin and self.is_state:
            yield from self.save_parts(value)


class Tuple(Sequence, Fixed):
    types = (tuple,)
