"""A sample -> its median, with an interval that holds whatever the distribution is."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

from msgspec import Struct

SMALLEST_SAMPLE = 6  # below, even the whole range holds the median with less than 95 %


class MedianInterval(Struct, frozen=True):
    """The median of a sample, and bounds for the median of what it was drawn from."""

    median: float
    low: float
    high: float


def median_interval(sample: Sequence[float], *, confidence: float = 0.95) -> MedianInterval:
    """Bounds that hold the true median with at least `confidence`, from two order statistics.

    How many of n values lie below the true median is binomial with 1/2, so the r-th smallest lies
    above it with the probability of fewer than r; likewise at the other end. Raises `ValueError`
    for a sample too small for any such bounds.
    """
    rank = lower_rank(len(sample), confidence)
    if rank == 0:
        raise ValueError(f"{len(sample)} values cannot bound a median with {confidence:.0%}")
    ordered = sorted(sample)
    return MedianInterval(median(ordered), ordered[rank - 1], ordered[len(ordered) - rank])


def lower_rank(count: int, confidence: float) -> int:
    """The largest r with P(fewer than r of `count` values below the median) <= (1 - c) / 2.

    Ranks count from 1; 0 where there is none.
    """
    allowed = (1.0 - confidence) / 2.0 * 2.0**count
    below, rank = 0, 0
    while rank < count and (below := below + comb(count, rank)) <= allowed:
        rank += 1
    return rank
