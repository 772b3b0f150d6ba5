"""What counts its calls and lives -> who reads the counts while the program runs."""

from __future__ import annotations

from collections import Counter
from typing import Protocol
from weakref import ref


class Tallied(Protocol):
    """Something whose calls are replayed, or run eagerly for a reason."""

    @property
    def name(self) -> str: ...

    @property
    def replayed(self) -> int: ...

    def fallbacks(self) -> Counter[str]: ...


_LIVING: list[ref[Tallied]] = []


def register(tallied: Tallied) -> None:
    """Let `tallies` find it as long as it lives."""
    _LIVING.append(ref(tallied, _LIVING.remove))


def tallies() -> list[Tallied]:
    """All that live, those made first first."""
    found = (each() for each in list(_LIVING))
    return [each for each in found if each is not None]
