"""Launches by name -> the unit that repeats to their end, and which steps are of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from graphdoctor.trace.arrays import Ints

_FEWEST_REPEATS = 3
_SHORTEST = 8  # fewer launches are a loop inside of a step
_ANCHORS = 8  # how many of the rarest names are tried
_STRIDES = 12  # how often a name may occur within one unit and still be tried
_MATCHING = 0.99
_SIMILAR = 0.9  # of what runs before the repetition also runs in it


def period(sequence: Ints) -> tuple[int, int] | None:
    """(where the repetition begins, length of the unit); None where nothing repeats three times.

    The shortest unit that repeats to the end, from the beginning or after at least one unit of
    similar work: twelve equal layers between an embedding and a head are not steps.
    """
    count = len(sequence)
    for length in sorted(set(_candidates(sequence))):
        if length < _SHORTEST:
            continue
        if length * _FEWEST_REPEATS > count:
            break
        begin = _begin(sequence, length)
        if count - begin < _FEWEST_REPEATS * length or not _is_step(sequence, begin, length):
            continue
        if not any(_begin(sequence[begin:], short) == 0 for short in range(1, _SHORTEST)):
            return begin, length
    return None


def _is_step(sequence: Ints, begin: int, length: int) -> bool:
    last = sequence[-2 * length : -length] != sequence[-length:]
    if np.count_nonzero(last) > (1 - _MATCHING) * length:
        return False
    if begin == 0:
        return True
    similar = np.isin(sequence[:begin], sequence[begin : begin + length])
    return bool(length <= begin <= len(sequence) // 2 and similar.mean() >= _SIMILAR)


def _candidates(sequence: Ints) -> Iterator[int]:
    """The usual distances between equal names, for the rarest names."""
    values, counts = np.unique(sequence, return_counts=True)
    rare = values[np.argsort(counts, kind="stable")]
    counts = np.sort(counts)
    for value in rare[counts >= _FEWEST_REPEATS][:_ANCHORS].tolist():
        places = np.flatnonzero(sequence == value)
        for stride in range(1, min(_STRIDES, len(places) - 1) + 1):
            distances = places[stride:] - places[:-stride]
            common, times = np.unique(distances, return_counts=True)
            yield int(common[np.argmax(times)])


def _begin(sequence: Ints, length: int) -> int:
    """From where on each name equals the one a unit later, but for one in a hundred."""
    differs = sequence[:-length] != sequence[length:]
    if not differs.any():
        return 0
    # The mean of all that follows a place, from the back.
    remaining = np.arange(len(differs), 0, -1)
    later = np.cumsum(differs[::-1])[::-1]
    good = np.flatnonzero((later <= (1 - _MATCHING) * remaining) & ~differs)
    return int(good[0]) if len(good) else len(sequence)


OTHER = -1
_ALIKE = 0.7  # of all kernels of two steps of one kind, by name and number
_MOST_KINDS = 16


def kinds_of(names: Ints, owner: Ints, steps: int) -> list[int]:
    """For each step the number of its kind, in order of their first steps; OTHER beyond 16 kinds.

    `names` are those of the device events, `owner` the step of each or -1. Steps of one kind may differ by some
    kernels: another branch, a shorter batch, a scaler that skips. Training and evaluation do not.
    """
    size = int(names.max(initial=0)) + 1
    mine = owner >= 0
    pairs, counts = np.unique(owner[mine] * size + names[mine], return_counts=True)
    edges = np.searchsorted(pairs, np.arange(steps + 1) * size).tolist()
    leaders: list[Ints] = []
    kinds = []
    for low, high in pairwise(edges):
        own, count = pairs[low:high] % size, counts[low:high]
        kind = next((n for n, other in enumerate(leaders) if _alike(other, own, count)), OTHER)
        if kind == OTHER and len(own) and len(leaders) < _MOST_KINDS:
            leader = np.zeros(size, np.int64)
            leader[own] = count
            kind = len(leaders)
            leaders.append(leader)
        kinds.append(kind)
    return kinds


def _alike(leader: Ints, names: Ints, counts: Ints) -> bool:
    common = int(np.minimum(leader[names], counts).sum())
    return common >= _ALIKE * (int(leader.sum()) + int(counts.sum()) - common)
