"""Where a value of the state is: the steps that lead to it from a root, and the text that people read."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

Measure = Literal["len", "contents"]


class By(Enum):
    """How one step of a path leads to the next value."""

    NAME = "name"  # of a root, of a variable of a closure, of a global, or of a class
    ATTRIBUTE = "attribute"
    ITEM = "item"  # an index, or a key that is plain data
    OBJECT = "object"  # the key is an object, which the text names by its path or its place
    MEASURE = "measure"  # no other value: the length or the contents of the one before


# A walk makes a path for each value that it sees: past the named tuple's constructor, which is Python.
_new = tuple.__new__
_ATTRIBUTE, _ITEM = By.ATTRIBUTE, By.ITEM


class Numbered(NamedTuple):
    """The name of a variable or a class that is not the first of its name in a walk: "count#2"."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"


class ObjectKey(NamedTuple):
    """A key that is an object: its place among the keys, and its own path if it has one."""

    place: int
    path: str | None

    def __str__(self) -> str:
        return self.path or str(self.place)


class StatePath(NamedTuple):
    """A path of any depth. `str()` gives "model.layers[0].weight", or "len(model.seen)"."""

    parent: StatePath | None
    by: By
    name: object

    @classmethod
    def of(cls, name: str) -> StatePath:
        return cls(None, By.NAME, name)

    def attribute(self, name: str) -> StatePath:
        return _new(StatePath, (self, _ATTRIBUTE, name))

    def item(self, key: object) -> StatePath:
        return _new(StatePath, (self, _ITEM, key))

    def under(self, place: int, path: str | None = None) -> StatePath:
        """The value whose key is an object."""
        return StatePath(self, By.OBJECT, ObjectKey(place, path))

    def measured(self, measure: Measure) -> StatePath:
        return StatePath(self, By.MEASURE, measure)

    @property
    def inner(self) -> StatePath:
        """The path of the value itself where this is its measure: "seen" of "len(seen)"."""
        return self.parent if self.by is By.MEASURE and self.parent is not None else self

    @property
    def is_gradient(self) -> bool:
        return self.by is By.ATTRIBUTE and self.name == "grad"

    @property
    def own_name(self) -> str:
        """What code calls it: "calls" of "model.calls", "seen" of "len(seen)" and of "seen[0]"."""
        path = self.inner
        while path.parent is not None and not path._is_dotted:
            path = path.parent
        return path.name.name if isinstance(path.name, Numbered) else str(path.name)

    @property
    def _is_dotted(self) -> bool:
        return self.by is By.ATTRIBUTE or (self.by is By.ITEM and type(self.name) is str)

    def __str__(self) -> str:
        if self.by is By.MEASURE:
            return f"{self.name}({self.parent})"
        steps: list[str] = []
        path: StatePath | None = self
        while path is not None:
            parent, by, name = path
            # As _is_dotted, without a call: a large state has a million steps.
            if by is By.ATTRIBUTE or (by is By.ITEM and type(name) is str):
                steps.append(f".{name}")
            elif by is By.NAME:
                steps.append(str(name))
            else:
                steps.append(f"[{name!r}]" if by is By.ITEM else f"[{name}]")
            path = parent
        steps.reverse()
        return "".join(steps)

    # Comparisons and the hash of a tuple would recurse: a linked list may be a million steps deep.
    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatePath) and list(self._steps()) == list(other._steps())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _steps(self) -> list[tuple[By, object]]:
        steps: list[tuple[By, object]] = []
        path: StatePath | None = self
        while path is not None:
            steps.append((path.by, path.name))
            path = path.parent
        return steps
