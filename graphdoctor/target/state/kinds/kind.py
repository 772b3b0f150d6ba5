"""What is done with every family of objects: look inside, save, put back, tell two moments apart, make another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.kinds.node import Node
from graphdoctor.target.state.paths import Measure, StatePath
from graphdoctor.target.state.plain import STREAMS
from graphdoctor.target.state.saved_tensor import Saving

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
