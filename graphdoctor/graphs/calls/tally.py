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


class Audit(Protocol):
    """Something that looks for faults in replays of the program."""

    is_paused: bool


Around = Callable[[Tallied, Callable[[], object]], object]

AROUND: list[Around] = []  # what makes the calls of captured steps, the first for all
_LIVING: list[ref[Tallied]] = []
_KEEPING: list[list[Tallied]] = []
_AUDITS: list[Audit] = []


@contextmanager
def around_steps(around: Around) -> Iterator[None]:
    """In the block, `around` makes the calls of captured steps."""
    AROUND.append(around)
    try:
        yield
    finally:
        AROUND.remove(around)


@contextmanager
def audited(audit: Audit) -> Iterator[None]:
    """In the block, an audit looks for faults in each replay."""
    _AUDITS.append(audit)
    try:
        yield
    finally:
        _AUDITS.remove(audit)


def is_auditing() -> bool:
    """Whether a graph that is captured now is audited."""
    return bool(_AUDITS)


@contextmanager
def audits_paused() -> Iterator[None]:
    """In the block, replays are not the program's: a study makes them, of states that it restores."""
    paused = [each for each in _AUDITS if not each.is_paused]
    for each in paused:
        each.is_paused = True
    try:
        yield
    finally:
        for each in paused:
            each.is_paused = False


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
