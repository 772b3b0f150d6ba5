"""A misspelled name and the known ones -> the known one that was most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import takewhile


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar one; of equally similar ones that which begins alike, then the first."""

    def likeness(candidate: str) -> tuple[float, int]:
        one, other = name.lower(), candidate.lower()
        alike = (pair[0] == pair[1] for pair in zip(one, other, strict=False))
        return difflib.SequenceMatcher(None, one, other).ratio(), sum(takewhile(bool, alike))

    return max(known, key=likeness)
