"""Ranges of times and rates: what an amount takes, and how wide printed ranges are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, log, sqrt

from msgspec import Struct

from graphdoctor.estimate.gpus import Level
from graphdoctor.values.figures import Range

ZERO = Range.exact(0.0)


def divide(amount: float, rate: Range) -> Range:
    """The time that an amount takes: the highest rate gives the lowest time."""
    return Range(amount / rate.high, amount / rate.mid, amount / rate.low)


def pooled_width(parts: Iterable[Range]) -> float:
    """How much of its width, in log, the range of the parts' total keeps: between a half and all.

    Half of a part's error is common to all parts (a slower CPU, a lower clock). The other half is
    its own and falls with the square root of their number, where equal parts, which err alike,
    are one, and small parts count for little.
    """
    by_size: dict[float, float] = defaultdict(float)
    for part in parts:
        by_size[part.mid] += part.mid
    total = sum(by_size.values())
    if not total:
        return 1.0
    return 0.5 + 0.5 * sqrt(sum(size**2 for size in by_size.values())) / total


def towards(value: Range, level: Level, width: float) -> float:
    """The given end of a range that was narrowed, in log, to `width` of itself."""
    end: float = getattr(value, level)
    return value.mid * (end / value.mid) ** width if value.mid and level != "mid" else value.mid


def stretched(value: Range, times: float, *, least: float) -> Range:
    """The same middle, with each end `times` as far from it in log, and at least `least`."""
    if not value.mid:
        return value
    down = max(times * log(value.mid / value.low), least) if value.low else None
    up = max(times * log(value.high / value.mid), least)
    return Range(
        value.mid * exp(-down) if down is not None else 0.0, value.mid, value.mid * exp(up)
    )


def around(cases: Sequence[float]) -> Range:
    """The range that the cases span; the first one is the middle."""
    return Range(min(cases), cases[0], max(cases))


LEAST = 0.05  # in log, to either side: the same step measured twice differs by as much


class Width(Struct, frozen=True):
    """`times` the distance of each end from the middle, and `least` at least, in log."""

    times: float
    least: float = LEAST

    def of(self, corners: Range) -> Range:
        return stretched(corners, self.times, least=self.least)


EAGER = Width(0.36)
GRAPH = Width(0.60)
BUSY = Width(0.68)
SPEEDUP = Width(0.37)
# From the eager step's own measured times. What Python between graphs costs is no figure of the profile's,
# so that the corners say little of parts.
WHOLE_FROM_EAGER = Width(1.08)
PARTS_FROM_EAGER = Width(0.0, least=0.20)
SEGMENTS_FROM_EAGER = Width(0.0, least=0.14)
SPLIT_FROM_EAGER = Width(0.0, least=0.07)


def capped(value: Range, most: Range) -> Range:
    """Each end no higher than the other range's."""
    return Range(min(value.low, most.low), min(value.mid, most.mid), min(value.high, most.high))


def from_eager(*, is_whole: bool, has_segments: bool, has_glue: bool) -> Width:
    """The width of a prediction that goes out from the eager step's own times.

    `has_glue`: all but the calls between the graphs of a split step is in graphs, so that little is unknown.
    """
    if is_whole:
        return WHOLE_FROM_EAGER
    if has_glue:
        return SPLIT_FROM_EAGER
    return SEGMENTS_FROM_EAGER if has_segments else PARTS_FROM_EAGER
