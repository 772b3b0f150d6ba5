"""One thing of the host at a capture -> a question whether it is still the same, and what changed, in words.

Unlike what is replaced by its equal, these are watched as they were for as long as the guard lives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import NamedTuple, Protocol

from graphdoctor.graphs.guards.reached import Reached
from graphdoctor.graphs.guards.written_out import Question, all_of

_MADE_OF = ("__code__", "__defaults__", "__kwdefaults__")
_make = operator.attrgetter(*_MADE_OF)


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
        return Question(f"cell{number}.cell_contents is in_cell{number}", given)

    def difference(self) -> str:
        if self.cell.cell_contents is self.before:
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


class _Function(NamedTuple):
    """What a function runs, and with which defaults."""

    path: str
    function: FunctionType
    before: tuple[object, ...]

    def question(self, number: int) -> Question:
        terms = [f"function{number}.{name} is {name}{number}" for name in _MADE_OF]
        given: dict[str, object] = {f"function{number}": self.function}
        parts = zip(_MADE_OF, self.before, strict=True)
        return Question(all_of(terms), given | {f"{name}{number}": part for name, part in parts})

    def difference(self) -> str:
        if all(map(operator.is_, _make(self.function), self.before)):
            return ""
        return f"the code or a default of {self.path} changed (__code__, __defaults__)"


def kept(found: Reached) -> Iterator[Kept]:
    """All of it, as it is now."""
    for path, cell in found.cells:
        yield _Cell(path, cell, cell.cell_contents)
    for path, ask in found.memory:
        yield _Answer(path, ask, ask(), "what {path} holds changed")
    for path, ask in found.settings.items():
        yield _Answer(path, ask, ask(), "{path} changed from {before} to {now}")
    for path, value in found.objects:
        yield _Kind(path, value, type(value))
    for path, function in found.functions:
        yield _Function(path, function, _make(function))
