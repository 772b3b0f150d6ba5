"""Count calls of the captured callables that are alive, for observers that read the counts meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import ref


class Tallied(Protocol):
    """Something whose calls are replayed, or run eagerly for a reason."""

    @property
    def name(self) -> str: ...

    @property
    def replayed(self) -> int: ...

    def fallbacks(self) -> Counter[str]: ...


Around = Callable[[Tallied, Callable[[], object]], object]

_LIVING: list[ref[Tallied]] = []
_KEEPING: list[list[Tallied]] = []
_AROUND: list[Around] = []


def called(tallied: Tallied, call: Callable[[], object]) -> object:
    """Make a call of a captured step, inside what listens to such calls."""
    for around in _AROUND:
        return around(tallied, call)
    return call()


@contextmanager
def around_steps(around: Around) -> Iterator[None]:
    """In the block, `around` makes the calls of captured steps."""
    _AROUND.append(around)
    try:
        yield
    finally:
        _AROUND.remove(around)


def register(tallied: Tallied) -> None:
    """Let `tallies` find it as long as it lives."""
    _LIVING.append(ref(tallied, _LIVING.remove))
    for kept in _KEEPING:
        kept.append(tallied)


@contextmanager
def kept_tallies() -> Iterator[list[Tallied]]:
    """All that are made in the block, also those that nobody else holds any more."""
    kept: list[Tallied] = []
    _KEEPING.append(kept)
    try:
        yield kept
    finally:
        _KEEPING.remove(kept)


def tallies() -> list[Tallied]:
    """All that live, those made first first."""
    found = (each() for each in list(_LIVING))
    return [each for each in found if each is not None]
