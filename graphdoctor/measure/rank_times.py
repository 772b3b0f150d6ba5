"""What the profiler saw on each rank, and a step's wall time -> the measured Estimate, without waiting for other ranks.

A collective's kernel runs from when its own rank comes to it, and does nothing until the last one has: only what
follows is work. A graph is launched at once, so that in it no rank comes late.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.measure.skew import is_one_host
from graphdoctor.trace import Trace
from graphdoctor.trace.arrays import Ints
from graphdoctor.trace.explain.estimate import estimate_from_trace
from graphdoctor.trace.explain.ranks import RankLane, rank_lane
from graphdoctor.trace.intervals import union
from graphdoctor.values.figures import Range, time_text
from graphdoctor.values.speed import Estimate, Term


class Times(NamedTuple):
    """Of one step on this rank: work of its own, collectives since all ranks were there, either, and waiting."""

    compute_us: float
    network_us: float
    busy_us: float
    waiting_us: float


def estimate_of_ranks(
    eager: Trace, wall_us: float, profile: DeviceProfile, *, steps: int, meeting: Meeting
) -> Estimate | None:
    """`steps` eager steps under the profiler, each of which takes `wall_us` without it.

    All ranks have to ask. None where they have no clock in common, or saw different collectives.

    Raises UsageError when the trace has no device events.
    """
    lane = rank_lane(eager)
    times = _times(lane, steps, meeting)
    if times is None:
        return None
    found = estimate_from_trace(eager, wall_us, profile)
    gap = profile.node_gap_us
    graph_us = Range(
        min(max(times.compute_us, times.network_us), wall_us),
        min(times.busy_us + found.launches * gap.mid, wall_us),
        min(times.compute_us + times.network_us + found.launches * gap.high, wall_us),
    )
    return replace(
        found,
        device_busy_us=Range.exact(times.busy_us),
        graph_us=graph_us,
        launch_bound_share=Range(
            1 - graph_us.high / wall_us, 1 - graph_us.mid / wall_us, 1 - graph_us.low / wall_us
        ),
        speedup=Range(wall_us / graph_us.high, wall_us / graph_us.mid, wall_us / graph_us.low),
        terms=(
            Term("work of the device except collectives", time_text(times.compute_us), "profiled"),
            Term("collectives, once all ranks are there", time_text(times.network_us), "profiled"),
            Term("gap between graph nodes", f"{gap.mid:g} us", gap.source),
        ),
        notes=(
            f"In eager the device of this rank waits for other ranks for {time_text(times.waiting_us)} a step, inside"
            " collectives; that is not counted as busy, and a graph is taken not to wait.",
        ),
    )


def _times(lane: RankLane, steps: int, meeting: Meeting) -> Times | None:
    mine = [lane.start_ns.tolist(), lane.end_ns.tolist()]
    ranks = meeting.answers(mine, list[list[int]])
    if not is_one_host() or len({len(starts) for starts, _ in ranks}) != 1 or not mine[0]:
        return None
    end = lane.end_ns
    all_there = np.minimum(np.max([starts for starts, _ in ranks], axis=0), end)
    work = lane.work_ns
    low, high = np.concatenate((work[0], all_there)), np.concatenate((work[1], end))
    in_order = np.argsort(low, kind="stable")
    either = union(low[in_order], high[in_order])
    each = 1e3 * steps
    return Times(
        compute_us=_length(*work) / each,
        network_us=_length(all_there, end) / each,
        busy_us=_length(*either) / each,
        waiting_us=_length(lane.start_ns, all_there) / each,
    )


def _length(low: Ints, high: Ints) -> int:
    return int((high - low).sum())
