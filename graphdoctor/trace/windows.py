"""Moments, windows and stretches of time -> which lies in which, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask

Window = tuple[int, int]  # from, to in ns
OUTSIDE = -1
_FEW = 32


def window_of(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Ints:
    """For each moment, the place of its window, or -1. The windows must not overlap.

    `closed`: whether a window holds its "left" edge or its "right" one.
    """
    if not windows:
        return np.full(len(moments), OUTSIDE, np.int64)
    if len(windows) * _FEW < len(moments) and bool((moments[1:] >= moments[:-1]).all()):
        return _window_of_ordered(moments, windows, closed)
    edges = np.array(windows, np.int64)
    order = np.argsort(edges[:, 0], kind="stable")
    low, high = edges[order, 0], edges[order, 1]
    side = "right" if closed == "left" else "left"
    place = np.searchsorted(low, moments, side=side) - 1  # type: ignore[call-overload]
    is_inside = (moments < high[place]) if closed == "left" else (moments <= high[place])
    found: Ints = np.where((place >= 0) & is_inside, order[place], OUTSIDE)
    return found


def _window_of_ordered(moments: Ints, windows: Sequence[Window], closed: str) -> Ints:
    """The same for moments in order: only the windows' edges have to be looked for."""
    side = "left" if closed == "left" else "right"
    edges = np.searchsorted(moments, np.array(windows, np.int64), side=side)  # type: ignore[call-overload]
    found = np.full(len(moments), OUTSIDE, np.int64)
    for place, (low, high) in enumerate(edges.tolist()):
        found[low:high] = place
    return found


def inside(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Mask:
    """Which moments lie in any of the windows."""
    found: Mask = window_of(moments, windows, closed=closed) != OUTSIDE
    return found


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Stretches in order of their starts -> the same time in stretches that lie apart."""
    if not len(start):
        return start, end
    reached = np.maximum.accumulate(end)
    begins = np.append(True, start[1:] > reached[:-1])
    return start[begins], reached[np.append(begins[1:], True)]


def covered_ns_of(stretches: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    """How much of each [start, end) lies in the stretches, which are in order and apart."""
    low, high = stretches
    total = np.concatenate(([0], np.cumsum(np.maximum(high - low, 0))))
    reached = np.maximum.accumulate(high) if len(high) else high

    def before(moment: Ints) -> Ints:
        place = np.searchsorted(low, moment, side="right")
        last = np.maximum(place - 1, 0)
        beyond = np.maximum(reached[last] - moment, 0) if len(low) else np.zeros_like(moment)
        part: Ints = total[place] - np.where(place > 0, beyond, 0)
        return part

    found: Ints = np.maximum(before(np.maximum(start, end)) - before(start), 0)
    return found
