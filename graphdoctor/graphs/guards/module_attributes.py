"""The attributes that modules have at a capture -> whether each still has the same ones, in a few passes in C."""

from __future__ import annotations

import operator

from graphdoctor.graphs.guards.reached import Held

_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)


class Module:
    """A module's own attributes, and how they were."""

    def __init__(self, path: str, own: Held, names: list[str], *, is_around: bool) -> None:
        self.path, self.own, self.names, self.is_around = path, own, names, is_around
        self.before = {name: own[name] for name in names}
        self._unwatched = set(own) - set(names)

    def now(self) -> Held:
        """The attributes that are watched, with new ones."""
        left_out = self._unwatched | {"forward"} if self.is_around else self._unwatched
        return {name: value for name, value in self.own.items() if name not in left_out}


class Attributes:
    """The attributes of modules, compared in a few passes in C over lists that are made once."""

    def __init__(self, modules: list[Module]) -> None:
        self.own = [module.own for module in modules]
        self._read = [operator.itemgetter(*module.names) for module in modules]
        self._values = list(map(_call, self._read, self.own))
        self._counts = list(map(len, self.own))

    def are_same(self) -> bool:
        """Raises where an attribute is gone, or a tensor is in another's place."""
        return (
            list(map(_call, self._read, self.own)) == self._values
            and list(map(len, self.own)) == self._counts
        )


class Outermost:
    """The attributes of a module whose `forward` is replaced and put back between calls."""

    def __init__(self, module: Module) -> None:
        self._own = module.own
        self._read = operator.itemgetter(*module.names)
        self._values = self._read(self._own)
        self._count = len(self._own) - ("forward" in self._own)

    def is_same(self) -> bool:
        own = self._own
        return len(own) - ("forward" in own) == self._count and bool(
            self._read(own) == self._values
        )
