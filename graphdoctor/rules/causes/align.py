"""Pairs the calls of two sequences of operators that are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

from graphdoctor.values.recording import Op

Pair = tuple[int | None, int | None]


def align(a: Sequence[Op], b: Sequence[Op]) -> tuple[Pair, ...]:
    """Pair up equal calls of two runs, in order; None stands for "only in the other run".

    Calls are equal when name, location, module, phase and the number of such calls before them are.
    """
    matcher = SequenceMatcher(None, [*_keys(a)], [*_keys(b)], autojunk=False)
    return tuple(_pairs(matcher.get_matching_blocks()))


def _keys(ops: Sequence[Op]) -> Iterator[Hashable]:
    seen: Counter[Hashable] = Counter()
    for op in ops:
        key = op.name, op.location, op.module, op.phase
        seen[key] += 1
        yield *key, seen[key]


def _pairs(blocks: Sequence[tuple[int, int, int]]) -> Iterator[Pair]:
    next_a = next_b = 0
    for i, j, size in blocks:
        yield from ((only, None) for only in range(next_a, i))
        yield from ((None, only) for only in range(next_b, j))
        yield from zip(range(i, i + size), range(j, j + size), strict=True)
        next_a, next_b = i + size, j + size
