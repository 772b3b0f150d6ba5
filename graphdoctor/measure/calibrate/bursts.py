"""Host times of short rows of calls in; what a warm call costs, and what the first one, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

Bounds = tuple[float, float, float]


class Burst(Struct, frozen=True):
    """Medians by place in the row, in us. `warm` are the samples of the cheapest place but the first.

    The first call of a row is cold, and late ones may wait for the device: neither is the call's own cost.
    """

    places: tuple[float, ...]
    warm: tuple[float, ...]

    @property
    def cold_us(self) -> float:
        return self.places[0]

    @property
    def warm_us(self) -> float:
        return median(self.warm)


def burst_of(rows: Sequence[Sequence[float]]) -> Burst:
    """`rows`: one row a burst, of two calls or more."""
    columns = list(zip(*rows, strict=True))
    places = [median(column) for column in columns]
    cheapest = min(range(1, len(places)), key=places.__getitem__)
    return Burst(tuple(places), tuple(columns[cheapest]))


def launch_bounds(bursts: Mapping[int, Burst]) -> tuple[Bounds, Bounds]:
    """The fixed cost of launching a graph, and that of one more node, from graphs of several sizes.

    The first launch after a wait is the upper bound of the fixed cost.
    """
    fewest, most = min(bursts), max(bursts)
    few, many = bursts[fewest], bursts[most]
    node = _ordered([(value - few.warm_us) / (most - fewest) for value in many.warm])
    fixed = [value - fewest * max(0.0, node[1]) for value in few.warm]
    low, mid, high = _ordered(fixed)
    return (low, mid, max(high, few.cold_us)), node


def _ordered(values: Sequence[float]) -> Bounds:
    """The least, the median, and what nine of ten samples stay below."""
    ordered = sorted(values)
    return ordered[0], median(ordered), ordered[(len(ordered) * 9 - 1) // 10]
