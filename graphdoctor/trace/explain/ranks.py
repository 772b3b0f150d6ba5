"""The collectives of several ranks beside each other -> who waits, and who is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from graphdoctor.trace.arrays import Ints, Trace
from graphdoctor.trace.explain.rank_lanes import Aligned, RankLane, align
from graphdoctor.trace.explain.straggler import Delay, delay_of
from graphdoctor.values.compared_traces import CollectiveWait, RankComparison, RankTime
from graphdoctor.values.trace import TraceReport

_WORTH = 0.01  # of a step
_MAINLY = 0.5


def compare_ranks(
    lanes: Sequence[RankLane],
    reports: Sequence[TraceReport],
    read_again: Callable[[TraceReport], Trace],
) -> RankComparison | None:
    """None where there is one rank only, or where nothing is communicated.

    Of all traces only the lanes are kept; `read_again` gives the straggler's, to see what it did meanwhile.
    """
    if len(lanes) < 2 or not any(lane.exchanges for lane in lanes):
        return None
    found = align(lanes, [report.worker for report in reports])
    if isinstance(found, str):
        return RankComparison(problem=found)
    return _compared(reports, found, read_again)


def _compared(
    reports: Sequence[TraceReport], found: Aligned, read_again: Callable[[TraceReport], Trace]
) -> RankComparison:
    start, end = (times - found.offset_ns[:, None] for times in (found.start_ns, found.end_ns))
    latest = start.max(axis=0)
    waiting = np.clip(latest - start, 0, end - start)
    working = end - start - waiting
    who = start.argmax(axis=0)
    second = np.sort(start, axis=0)[-2]
    caused = np.bincount(who, latest - second, len(reports)).astype(np.int64)
    steps = max(1, min(report.steps_counted for report in reports))
    each = 1e3 * steps
    ranks = tuple(
        RankTime(
            worker=report.worker,
            clock_offset_us=int(found.offset_ns[place]) / 1e3,
            waiting_us=int(waiting[place].sum()) / each,
            caused_us=int(caused[place]) / each,
            working_us=int(working[place].sum()) / each,
            compute_us=int(found.compute_ns[place].sum()) / each,
        )
        for place, report in enumerate(reports)
    )
    worst = int(caused.argmax())
    step_us = reports[worst].span_ns / 1e3 / reports[worst].steps_counted
    delay = Delay()
    if ranks[worst].caused_us > _WORTH * step_us and caused[worst] > _MAINLY * caused.sum():
        late = np.flatnonzero((who == worst) & (latest > second))
        delay = delay_of(read_again(reports[worst]), found, (worst, late), reports, steps)
    return RankComparison(
        ranks=ranks,
        collectives=len(found.kinds),
        waits=tuple(_waits_by_kind(found.kinds, waiting, working, steps)),
        skew_us=float(np.median(latest - start.min(axis=0))) / 1e3,
        straggler=delay.worker,
        phase=delay.phase,
        reason=delay.reason,
    )


def _waits_by_kind(
    kinds: Sequence[str], waiting: Ints, working: Ints, steps: int
) -> Iterator[CollectiveWait]:
    """What a rank waits and works in collectives of each kind, a step, in the mean of the ranks."""
    each = 1e3 * steps
    for kind in sorted(set(kinds)):
        mine = np.array([one == kind for one in kinds])
        yield CollectiveWait(
            kind=kind,
            runs=int(mine.sum()) / steps,
            waiting_us=float(waiting[:, mine].sum(axis=1).mean()) / each,
            working_us=float(working[:, mine].sum(axis=1).mean()) / each,
        )
