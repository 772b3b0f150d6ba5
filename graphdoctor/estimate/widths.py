"""How wide the printed ranges are: what held-out measurements ask for, and no more.

The corners of a prediction (a slow or fast host with a slow or fast device) say which figures it hangs
on; how far off predictions really are, measurements say. Each number here is the smallest by which the
corners' distance from the middle, in log, is to be multiplied so that 80 % of the steps of a workload that
nobody has seen lie inside, with the correction that a sample of so few families needs:
benchmarks/truth/predictions.py prints them, docs/prediction.md has what came of it.
"""

from __future__ import annotations

from msgspec import Struct

from graphdoctor.estimate.ranges import stretched
from graphdoctor.values.figures import Range

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
