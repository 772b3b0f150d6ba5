"""Ratios with their bounds -> marks on one logarithmic axis, for an inline picture of intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from graphdoctor.values.report import Range

WIDTH = 240.0  # units of the pictures' view boxes
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_WIDEST = 1000.0  # a bound beyond this is drawn at the edge


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an interval and its middle lie."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Scale:
    """From the least to the greatest of what is shown, 1x always among it."""

    low: float
    high: float

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions and words."""
        return [(self.at(tick), f"{tick:g}x") for tick in _TICKS if self.low <= tick <= self.high]

    def at(self, ratio: float) -> float:
        span = math.log(self.high / self.low)
        position = math.log(min(max(ratio, self.low), self.high) / self.low) / span * WIDTH
        return round(position, 1)

    def mark(self, ratio: Range) -> Mark:
        return Mark(self.at(ratio.low), self.at(ratio.mid), self.at(ratio.high))


def scale_of(ratios: Iterable[Range]) -> Scale:
    """With a little room at both ends; what is not finite or not above 0 has no place on it."""
    bounds = [
        bound
        for ratio in ratios
        for bound in (ratio.low, ratio.mid, ratio.high)
        if math.isfinite(bound) and bound > 0.0
    ]
    low, high = min([1.0, *bounds]), max([1.0, *bounds])
    return Scale(max(low * 0.85, 1 / _WIDEST), min(high * 1.15, _WIDEST))


def is_shown(ratio: Range) -> bool:
    """Whether it has a place on a logarithmic axis."""
    return all(math.isfinite(bound) and bound > 0.0 for bound in (ratio.low, ratio.mid, ratio.high))
