"""Steps as lists of kernel names -> which of them are steps of the same kind."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from graphdoctor.trace.arrays import Ints

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
