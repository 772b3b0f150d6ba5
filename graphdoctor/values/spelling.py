"""Finds the known names that a misspelled one most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

_ALIKE = 0.5  # as difflib's ratio has it


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar one; of equally similar ones that which begins alike, then the first."""
    return max(known, key=lambda one: _likeness(name, one))


def alike(name: str, known: Iterable[str], *, most: int, least: float = _ALIKE) -> list[str]:
    """The most similar ones first; none that is not much like it."""
    found = [one for one in known if _likeness(name, one)[0] >= least]
    return sorted(found, key=lambda one: _likeness(name, one), reverse=True)[:most]


def meant(name: str, known: Iterable[str], *, least: float = _ALIKE) -> str:
    """ "; did you mean 'x'?" to end a sentence with, or "" where nothing known is much like it."""
    return "".join(f"; did you mean {one!r}?" for one in alike(name, known, most=1, least=least))


def _likeness(name: str, candidate: str) -> tuple[float, int]:
    from difflib import SequenceMatcher  # not before a name is wrong: --help is to be quick

    one, other = name.lower(), candidate.lower()
    same = (pair[0] == pair[1] for pair in zip(one, other, strict=False))
    return SequenceMatcher(None, one, other).ratio(), sum(takewhile(bool, same))
