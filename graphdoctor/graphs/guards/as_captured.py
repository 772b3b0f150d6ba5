"""One thing of the host at a capture -> a question whether it is still the same, and what changed, in words.

Unlike what is replaced by its equal, these are watched as they were for as long as the guard lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CellType
from typing import NamedTuple, Protocol

from graphdoctor.graphs.guards.differences import NOTHING
from graphdoctor.graphs.guards.paths import joined
from graphdoctor.graphs.guards.reached import Reached
from graphdoctor.graphs.guards.written_out import Question, all_of
from graphdoctor.target.state.variables import Namespace


class Kept(Protocol):
    """What is asked. Names in its question end in `number`, so that those of several stand side by side."""

    def question(self, number: int) -> Question: ...

    def difference(self) -> str: ...


class _Cell(NamedTuple):
    """A variable of an enclosing function, which has to hold the same object."""

    path: str
    cell: CellType
    before: object

    def question(self, number: int) -> Question:
        given = {f"cell{number}": self.cell, f"in_cell{number}": self.before}
        if self.before is NOTHING:
            given[f"contents{number}"] = contents_of_cell
            return Question(f"contents{number}(cell{number}) is in_cell{number}", given)
        return Question(f"cell{number}.cell_contents is in_cell{number}", given)

    def difference(self) -> str:
        if contents_of_cell(self.cell) is self.before:
            return ""
        return f"the variable {self.path} of an enclosing function was assigned anew"


class _Answer(NamedTuple):
    """What a function tells, such as of memory or a setting, which has to be equal. `told` is the sentence on it."""

    path: str
    ask: Callable[[], object]
    before: object
    told: str

    def question(self, number: int) -> Question:
        given = {f"tells{number}": self.ask, f"told{number}": self.before}
        return Question(f"tells{number}() == told{number}", given)

    def difference(self) -> str:
        now = self.ask()
        if now == self.before:
            return ""
        return self.told.format(path=self.path, before=self.before, now=now)


class _Kind(NamedTuple):
    """The class of an object."""

    path: str
    value: object
    before: type

    def question(self, number: int) -> Question:
        given = {f"object{number}": self.value, f"kind{number}": self.before}
        return Question(f"type(object{number}) is kind{number}", given)

    def difference(self) -> str:
        now = type(self.value)
        if now is self.before:
            return ""
        return f"the class of {self.path or 'the model'} changed from {self.before.__name__} to {now.__name__}"


class _Part(NamedTuple):
    """What an object has under a name that no dictionary tells of, such as a function's code."""

    path: str
    value: object
    name: str
    before: object

    def question(self, number: int) -> Question:
        given = {f"whole{number}": self.value, f"part{number}": self.before}
        return Question(f"whole{number}.{self.name} is part{number}", given)

    def difference(self) -> str:
        if getattr(self.value, self.name) is self.before:
            return ""
        return f"{joined(self.path, self.name)} was assigned anew"


class _Names(NamedTuple):
    """Names that code asks a namespace for, and that are not in it. Each is asked, 7 ns: others may come and go."""

    path: str
    namespace: Namespace
    names: list[str]

    def question(self, number: int) -> Question:
        given: dict[str, object] = {f"namespace{number}": self.namespace}
        given |= {f"name{number}_{place}": name for place, name in enumerate(self.names)}
        terms = (
            f"name{number}_{place} not in namespace{number}" for place in range(len(self.names))
        )
        return Question(all_of(terms), given)

    def difference(self) -> str:
        new = sorted(set(self.names).intersection(self.namespace))
        return f"{joined(self.path, new[0])} is new" if new else ""


def contents_of_cell(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet, or no more
        return NOTHING


def kept(found: Reached) -> Iterator[Kept]:
    """All of it, as it is now."""
    for path, cell in found.cells:
        yield _Cell(path, cell, contents_of_cell(cell))
    for path, ask in found.memory:
        yield _Answer(path, ask, ask(), "what {path} holds changed")
    for name, ask in found.traits.of_own(found.tensors).items():
        yield _Answer(name, ask, ask(), "{path} of a tensor of the model changed")
    for path, ask in found.settings.items():
        yield _Answer(path, ask, ask(), "{path} changed from {before} to {now}")
    for path, value in found.objects:
        yield _Kind(path, value, type(value))
    for path, value, name in found.parts:
        yield _Part(path, value, name, getattr(value, name))
    for path, namespace, names in found.absent:
        yield _Names(path, namespace, sorted(names))
