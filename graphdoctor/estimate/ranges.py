"""Ranges of times and rates -> ranges: what an amount takes, and how wide a total is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, log, sqrt

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
