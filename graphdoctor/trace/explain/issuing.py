"""Steps of a Trace -> the host's side of them: when it launched, how long, and where it waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask, Trace, distinct, median, together
from graphdoctor.trace.explain.gaps import events_of
from graphdoctor.trace.explain.hosts import outermost_waits
from graphdoctor.trace.explain.known_work import STAYS, known_work
from graphdoctor.trace.explain.queue import depth_at_launch
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.steps import Step
from graphdoctor.trace.windows import covered_ns_of, union

FULL_QUEUE = 900  # the driver's queue holds 1024 launches; from here on a long launch is a wait
_CONTIGUOUS_NS = 1_000_000  # steps closer than this on the host follow each other


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Rows of calls in order of start, their steps, and from when on each row's host time counts."""

    rows: Ints
    start: Ints
    end: Ints
    thread: Ints
    step: Ints
    since: Ints
    host_end: int

    @property
    def following(self) -> Ints:
        """The start of the next launch, or the end of the host's time."""
        return np.append(self.start[1:], max(self.host_end, int(self.end[-1])))


def launches_of(trace: Trace, device: int, steps: Sequence[Step]) -> Launches | None:
    call = launch_of(trace)[events_of(trace, device)]
    rows = distinct(call[call != NONE], len(trace.calls))
    if not len(rows) or not steps:
        return None
    start = trace.calls.start_ns[rows]
    begins = np.array([step.host[0] for step in steps])
    ends = np.array([step.host[1] for step in steps])
    step = np.searchsorted(begins, start, side="right") - 1
    inside = (step >= 0) & (start <= ends[step])
    if not inside.any():
        return None
    rows, start, step = rows[inside], start[inside], step[inside]
    follows = np.append(False, begins[1:] - ends[:-1] < _CONTIGUOUS_NS)
    before = np.append(begins[step[0]], start[:-1])
    is_first = np.diff(step, prepend=-1) != 0
    since = np.where(is_first & ~follows[step], begins[step], before)
    return Launches(
        rows=rows,
        start=start,
        end=trace.calls.end_ns[rows],
        thread=trace.calls.thread[rows],
        step=step,
        since=np.minimum(since, start),
        host_end=int(ends[step[-1]]),
    )


def time_taken_before(launch: Ints, waited: Ints, launches: Launches) -> Ints:
    """What the launch before each row, and the waits after it, took of the time before the row."""
    follows = launches.since[1:] == launches.start[:-1]
    return np.append(0, np.where(follows, (launch + waited)[:-1], 0))


def events_before(trace: Trace, launches: Launches) -> Ints:
    """How many operators, functions and calls began on launching threads since each row's host time
    began, up to its launch, and last after the last launch: the profiler slows the host with each.
    """
    launching = np.zeros(len(trace.threads), np.bool_)
    launching[launches.thread] = True
    low = np.append(launches.since, launches.end[-1])
    high = np.append(launches.start, max(launches.host_end, int(launches.end[-1])))
    found = np.zeros(len(low), np.int64)
    for table in (trace.operators, trace.frames, trace.annotations, trace.calls):
        begun = table.start_ns[launching[table.thread]]
        found += np.searchsorted(begun, high, side="right")
        found -= np.searchsorted(begun, low, side="right")
    return found


def elsewhere_before(trace: Trace, launches: Launches) -> Ints:
    """How much of each row's host time, and of the time after the last launch, its thread spends on making
    the inputs, which no graph spares."""
    low = np.append(launches.since, launches.end[-1])
    high = np.append(launches.start, max(launches.host_end, int(launches.end[-1])))
    thread = np.append(launches.thread, launches.thread[-1])
    found = np.zeros(len(low), np.int64)
    tables = (trace.operators, trace.frames, trace.annotations)
    spans = together([table.take(trace.named(table, _stays)) for table in tables])
    for one in distinct(spans.thread, len(trace.threads)).tolist():
        mine, asked = spans.thread == one, thread == one
        stretches = union(spans.start_ns[mine], spans.end_ns[mine])
        found[asked] = covered_ns_of(stretches, low[asked], high[asked])
    return found


def _stays(name: str) -> bool:
    return known_work(name) in STAYS


def launch_ns(trace: Trace, device: int, launches: Launches) -> Ints:
    """The time of each launch, up to the next one of another thread; a full queue's waits left out."""
    taken = np.minimum(launches.end, launches.following) - launches.start
    rows, depth = depth_at_launch(trace, device)
    if len(rows) > len(launches.rows):
        depth = depth[np.searchsorted(rows, launches.rows)]
    is_full = depth >= FULL_QUEUE
    usual = int(median(taken[~is_full])) if not is_full.all() else int(median(taken))
    blocked = is_full & (taken > 4 * usual)
    return np.where(blocked, usual, np.maximum(taken, 0))


def waits_after(
    trace: Trace, launches: Launches, launch: Ints, last_end: Ints
) -> tuple[Ints, Mask, Ints, float | None]:
    """After each launch: time in waiting calls, if the device ran dry in them, else the same time
    again as time that stays; and the usual time in us from the device's end to the host's going on.
    """
    count = len(launches.rows)
    waited, fixed = np.zeros(count, np.int64), np.zeros(count, np.int64)
    drains = np.zeros(count, np.bool_)
    waits = outermost_waits(trace)
    place = np.searchsorted(launches.start, waits.start_ns, side="right") - 1
    following = np.minimum(place + 1, count - 1)
    mine = (waits.thread == launches.thread[following]) | (waits.thread == launches.thread[place])
    keep = np.flatnonzero((place >= 0) & mine & (waits.start_ns < launches.following[place]))
    place = place[keep]
    start = waits.start_ns[keep]
    end = np.minimum(waits.end_ns[keep], launches.following[place])
    # A read is a launch itself: what it takes beyond a usual launch is waiting.
    is_launch = start == launches.start[place]
    usual = int(median(launch))
    launch[place[is_launch]] = np.minimum(launch[place[is_launch]], usual)
    length = np.maximum(end - start - np.where(is_launch, launch[place], 0), 0)
    np.add.at(waited, place, length)
    dry = last_end[place] <= end
    drains[place[dry]] = True
    np.add.at(fixed, place, np.where(dry, 0, length))
    fixed[drains] = 0
    late = (end - np.maximum(start, last_end[place]))[dry & (last_end[place] >= start)]
    return waited, drains, fixed, median(late) / 1e3 if len(late) else None


def actual_ns(launches: Launches, last: int) -> int:
    """The time that the steps really took, those that were left out between them not counted."""
    jumps = launches.since[1:] - launches.start[:-1]
    left_out = np.maximum(jumps, 0)[np.diff(launches.step) != 0]
    return last - int(launches.since[0]) - int(left_out.sum())
