"""What the profiler saw on each rank -> how far apart the ranks launch the same collective, eager and in a graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.trace import Trace
from graphdoctor.trace.explain.ranks import rank_lane
from graphdoctor.values.speed import LaunchSkew, Skew

_P95 = 0.95


def launch_skew(eager: Trace, captured: Trace, meeting: Meeting) -> LaunchSkew | None:
    """All ranks have to ask. None where they have no clock in common, or saw different collectives."""
    mine = [rank_lane(trace).start_ns.tolist() for trace in (eager, captured)]
    ranks = meeting.answers(mine, list[list[int]])
    if not is_one_host():
        return None
    found = [_skew([rank[run] for rank in ranks]) for run in range(2)]
    if found[0] is None or found[1] is None:
        return None
    return LaunchSkew(found[0], found[1])


def is_one_host() -> bool:
    """Times of the profiler are those of a host's clock."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _skew(begun_ns: Sequence[Sequence[int]]) -> Skew | None:
    """Of collectives in their order: how much later the last rank begins each than the first."""
    if len({len(one) for one in begun_ns}) != 1 or not begun_ns[0]:
        return None
    apart_us = sorted((max(at) - min(at)) / 1e3 for at in zip(*begun_ns, strict=True))
    return Skew(len(apart_us), median(apart_us), apart_us[int(_P95 * (len(apart_us) - 1))])
