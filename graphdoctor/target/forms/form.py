"""One way in which a file may describe its model, and what it has to read it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from graphdoctor.target.description import Description
from graphdoctor.target.inputs.fresh import Called
from graphdoctor.target.inputs.requested import BatchArgument, InputSpec
from graphdoctor.target.outline import Outline
from graphdoctor.target.user_code import user_code
from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was run: its module, its outline with the names it has now, what was asked."""

    module: ModuleType
    outline: Outline
    mode: Mode | None
    specs: tuple[InputSpec, ...]
    batch: BatchArgument = field(default_factory=BatchArgument)

    def get(self, name: str) -> Any:
        return self.batch.bound(getattr(self.module, name), name)

    def called(self, name: str) -> Called:
        """Inputs from a function of the file."""
        return Called(self.get(name), what=f"{name}()")


@dataclass(frozen=True, slots=True)
class Form:
    """`matches` decides by the outline alone, before the file runs; `describe` reads the file."""

    entry: str
    matches: Callable[[Outline], bool]
    describe: Callable[[Source], Description]


def call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call a function of the user's that a form is made of."""
    with user_code(f"{getattr(function, '__name__', 'the target')}()"):
        return function(*args, **kwargs)
