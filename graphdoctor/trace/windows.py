"""Moments and windows of time in; which moments lie in which window out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask

Window = tuple[int, int]  # from, to in ns
OUTSIDE = -1


def window_of(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Ints:
    """For each moment, the place of its window, or -1. The windows must not overlap.

    `closed`: whether a window holds its "left" edge or its "right" one.
    """
    if not windows:
        return np.full(len(moments), OUTSIDE, np.int64)
    edges = np.array(windows, np.int64)
    order = np.argsort(edges[:, 0], kind="stable")
    low, high = edges[order, 0], edges[order, 1]
    side = "right" if closed == "left" else "left"
    place = np.searchsorted(low, moments, side=side) - 1  # type: ignore[call-overload]
    is_inside = (moments < high[place]) if closed == "left" else (moments <= high[place])
    found: Ints = np.where((place >= 0) & is_inside, order[place], OUTSIDE)
    return found


def inside(moments: Ints, windows: Sequence[Window], *, closed: str = "left") -> Mask:
    """Which moments lie in any of the windows."""
    found: Mask = window_of(moments, windows, closed=closed) != OUTSIDE
    return found
