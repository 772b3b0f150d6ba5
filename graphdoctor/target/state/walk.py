"""Walk from named root objects to every object whose state they reach, each once, with its path."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping

from graphdoctor.target.state.kinds import kind_of
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.paths import By, Numbered, StatePath


class Walk:
    """One walk over an object graph; linear, and without recursion however deep the graph is."""

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        with_empty: bool = False,
        without: Iterable[object] = (),
        leaves: Container[int] = (),
    ) -> None:
        self.with_empty = with_empty
        self._leaves = leaves  # ids of objects that are visited, and not looked into
        self._stack = [Visit(StatePath.of(name), root) for name, root in roots.items()]
        self._stack.reverse()
        self._late: deque[Visit] = deque()
        # Holds the objects, so that no id is used twice.
        self._seen: dict[int, object] = {id(value): value for value in without}
        self._key_names: dict[int, StatePath] = {}
        self._variables: dict[str, dict[int, StatePath]] = {
            name: {id(self): StatePath.of(name)} for name in roots
        }

    def __iter__(self) -> Iterator[Visit]:
        stack, late, seen = self._stack, self._late, self._seen
        while stack or late:
            is_late = not stack
            visit = late.popleft() if is_late else stack.pop()
            value = visit[1]
            kind = kind_of(value)
            if kind.is_scalar:
                yield visit
                continue
            key = id(value)
            if key in seen:
                continue
            if kind.is_late and not is_late:
                late.append(visit)
                continue
            seen[key] = value
            if kind.names_keys:
                self._key_names[key] = visit.path
            yield visit
            if key not in self._leaves:
                children = [*self.children(visit)]
                children.reverse()
                stack += children

    def children(self, visit: Visit) -> Iterable[Visit]:
        """What an object leads to directly, as it is now, whether or not the walk has been there."""
        return kind_of(visit.value).children(visit, self)

    def name_of(self, key: object) -> str | None:
        """The path of a tensor or module that the walk has visited."""
        path = self._key_names.get(id(key))
        return None if path is None else str(path)

    def variable(self, name: str, holder: object) -> StatePath:
        """A variable or a class by its own name; the second one of a name has a number."""
        known = self._variables.setdefault(name, {})
        path = known.get(id(holder))
        if path is None:
            numbered = Numbered(name, len(known) + 1) if known else name
            path = known[id(holder)] = StatePath(None, By.NAME, numbered)
        return path
