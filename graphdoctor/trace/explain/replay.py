"""Turn the launches of a trace's steps into work for the two-lane simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.two_lanes import Floats, Mask, Work
from graphdoctor.trace.api import is_graph_launch, is_upload
from graphdoctor.trace.arrays import Ints, Spans, Trace, distinct, median, together
from graphdoctor.trace.explain.gap_causes import STAYS, known_work
from graphdoctor.trace.explain.gaps import Gaps, events_of
from graphdoctor.trace.explain.hosts import depth_at_launch, outermost_waits
from graphdoctor.trace.explain.warm_up import cold_calls, cold_starts, in_cold_starts
from graphdoctor.trace.intervals import NONE, Window, covered_ns_of, inside, union
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.steps import Step

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
    spans = together(
        [table.take(trace.named(table, lambda name: known_work(name) in STAYS)) for table in tables]
    )
    for one in distinct(spans.thread, len(trace.threads)).tolist():
        mine, asked = spans.thread == one, thread == one
        stretches = union(spans.start_ns[mine], spans.end_ns[mine])
        found[asked] = covered_ns_of(stretches, low[asked], high[asked])
    return found


def launch_ns(trace: Trace, device: int, launches: Launches) -> Ints:
    """The time of each launch, up to the next one of another thread; a full queue's waits left out."""
    taken = np.minimum(launches.end, launches.following) - launches.start
    rows, depth = depth_at_launch(trace, device)
    if len(rows) > len(launches.rows):
        depth = depth[np.searchsorted(rows, launches.rows)]
    is_full = depth >= FULL_QUEUE
    usual = int(median(taken[~is_full])) if not is_full.all() else int(median(taken))
    blocked = is_full & (taken > 4 * usual) | np.isin(launches.rows, cold_calls(trace))
    return np.where(blocked, usual, np.maximum(taken, 0))


def _cold_before(trace: Trace, launches: Launches, launch: Ints) -> Ints:
    """Cold starts in each row's host time, and last after the last launch, beyond a usual launch."""
    cold: Spans = cold_starts(trace)
    cold = cold.take(np.isin(cold.thread, launches.thread))
    place = np.minimum(np.searchsorted(launches.start, cold.start_ns), len(launch) - 1)
    is_launch = launches.start[place] == cold.start_ns
    start = cold.start_ns + np.where(is_launch, launch[place], 0)
    order = np.argsort(start, kind="stable")
    low = np.append(launches.since, launches.start[-1])
    high = np.append(launches.start, launches.following[-1])
    return covered_ns_of(union(start[order], cold.end_ns[order]), low, high)


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
    waits = waits.take(~in_cold_starts(trace, waits))
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


_ORDINARY = 8  # times the median host time for each event: what takes longer is no launching


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The launches of some steps as profiled, one row a launch and a last one for what follows.

    `fixed_us`: host time that is the same without a profiler, such as waits for an event. `elsewhere_us`: host
    time in loading and preparing data, which no graph spares.
    `events`: what the profiler recorded in each row's host time and launch.
    `step`: the place of each row's step. `is_upload`: it copies from the host. `opens`: the
    first launch of a step.
    """

    work: Work
    fixed_us: Floats
    elsewhere_us: Floats
    events: Ints
    step: Ints
    nodes: Ints
    in_graph: Mask
    is_upload: Mask
    opens: Mask
    one_stream: bool  # nothing on the device can wait for another stream
    steps: int
    actual_us: float  # from the host's first moment to the last end of host or device
    device_end_us: float  # the same to the device's last end

    def without_edges(self) -> Replay:
        """The same from the first launch to the device's last end: no host time before or after.

        What lies there (loading data, printing) is not for a graph to remove.
        """
        host, fixed, elsewhere = (
            times.copy() for times in (self.work.host_us, self.fixed_us, self.elsewhere_us)
        )
        before = float(host[0])
        host[[0, -1]] = fixed[[0, -1]] = elsewhere[[0, -1]] = 0.0
        waits = self.work.waits.copy()
        waits[-2:] = False
        work = replace(self.work, host_us=host, waits=waits)
        actual = self.device_end_us - before
        return replace(
            self,
            work=work,
            fixed_us=fixed,
            elsewhere_us=elsewhere,
            actual_us=actual,
            device_end_us=actual,
        )

    def without_profiler(self, factor: float) -> Work:
        """The work of a host that an ordinary launch takes `factor` times as long with the profiler.

        The profiler costs time for each event. A long call into C, a sleep or a read has none inside
        and takes as long without it.
        """
        work = self.work
        own = work.host_us - self.fixed_us
        each = (own + work.launch_us) / np.maximum(self.events, 1)
        overhead = _usual_us(self) * (1 - 1 / factor)
        left = np.maximum(1 - overhead / np.maximum(each, 1e-9), 0.5 / factor)
        return replace(work, host_us=own * left + self.fixed_us, launch_us=work.launch_us * left)


@lru_cache(maxsize=2)
def _usual_us(replay: Replay) -> float:
    """The host's time for each recorded event, where it launches."""
    total = replay.work.host_us - replay.fixed_us + replay.work.launch_us
    each = total / np.maximum(replay.events, 1)
    works = total > 0
    if not works.any():
        return 0.0
    usual = works & (each <= _ORDINARY * median(each[works]))
    return float(total[usual].sum()) / max(1, int(replay.events[usual].sum()))


def replay_of(
    trace: Trace, device: int, steps: Sequence[Step], found: Gaps, profile: DeviceProfile
) -> Replay | None:
    """The steps' launches in order of the host's time; None where the trace has none."""
    launches = launches_of(trace, device, steps)
    if launches is None:
        return None
    window = (steps[0].window[0], steps[-1].window[1])
    busy, gap, inner, nodes, last_end = _device_side(trace, device, launches.rows, found, window)
    launch = launch_ns(trace, device, launches)
    waited, waits, fixed, sync_us = waits_after(trace, launches, launch, last_end)
    cold = _cold_before(trace, launches, launch)
    host = launches.start - launches.since - time_taken_before(launch, waited, launches) - cold[:-1]
    tail = launches.following[-1] - launches.start[-1] - launch[-1] - waited[-1] - cold[-1]
    held = np.append(0, fixed)
    device_end = int(last_end[-1])
    in_steps = inside(found.end_ns, [step.window for step in steps], closed="right")
    warm_up = int(cold[0] + found.warm_up_ns[in_steps].sum())
    events = trace.device_events
    uploading = trace.named(events, is_upload) & (events.device == device)
    uploads = np.isin(launches.rows, launch_of(trace)[uploading])
    calls = trace.calls.take(launches.rows)
    made = Replay(
        work=Work(
            host_us=(np.maximum(np.append(host, tail), 0) + held) / 1e3,
            launch_us=np.append(launch, 0) / 1e3,
            gap_us=np.append(gap, 0) / 1e3,
            busy_us=np.append(busy, 0) / 1e3,
            inner_us=np.append(inner, 0) / 1e3,
            puts=np.append(np.ones(len(launch), np.bool_), False),
            waits=np.append(waits, False),
            latency_us=_latency_us(trace, found, profile),
            sync_us=profile.sync_us.mid if sync_us is None else sync_us,
        ),
        fixed_us=held / 1e3,
        elsewhere_us=elsewhere_before(trace, launches) / 1e3,
        events=events_before(trace, launches),
        step=np.append(launches.step, launches.step[-1]),
        nodes=np.append(nodes, 0),
        in_graph=np.append(trace.named(calls, is_graph_launch), False),
        is_upload=np.append(uploads, False),
        opens=np.append(np.diff(launches.step, prepend=-1) != 0, False),
        one_stream=_is_one_stream(trace, device),
        steps=len(steps),
        actual_us=actual_ns(launches, max(int(launches.following[-1]), device_end) - warm_up) / 1e3,
        device_end_us=actual_ns(launches, device_end - warm_up) / 1e3,
    )
    return _with_lost(made, trace, device, found, window[0], launches)


def _device_side(
    trace: Trace, device: int, calls: Ints, found: Gaps, window: Window
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """For each launch: time busy, gaps in queued work before and inside, device events, last end so far.

    A device event whose launch is missing counts with the next one's launch.
    """
    rows = events_of(trace, device)
    events = trace.device_events.take(rows)
    call = launch_of(trace)[rows]
    owner = _owner(call, calls)
    owner[(call == NONE) & ((events.start_ns < window[0]) | (events.start_ns >= window[1]))] = NONE
    reached = np.append(events.start_ns[:1], np.maximum.accumulate(events.end_ns)[:-1])
    added = np.maximum(events.end_ns - np.maximum(events.start_ns, reached), 0)
    busy, gap, inner, nodes = (np.zeros(len(calls), np.int64) for _ in range(4))
    mine = owner != NONE
    np.add.at(busy, owner[mine], added[mine])
    np.add.at(nodes, owner[mine], 1)
    gap_owner = owner[np.searchsorted(rows, found.event)]
    queued = found.device_gap_ns + found.unattributed_ns
    for part, is_mine in ((gap, ~found.in_graph), (inner, found.in_graph)):
        known = is_mine & (gap_owner != NONE)
        np.add.at(part, gap_owner[known], queued[known])
    last = np.zeros(len(calls), np.int64)
    np.maximum.at(last, owner[mine], events.end_ns[mine])
    return busy, gap, inner, nodes, np.maximum.accumulate(last)


def _with_lost(
    made: Replay, trace: Trace, device: int, found: Gaps, since: int, launches: Launches
) -> Replay:
    """The same with one more row before the first, if the first kernels `since` then have no launches.

    A profiler that starts while the device works sees kernels before it sees launches. The row puts them on the device.
    """
    rows = events_of(trace, device)
    known = np.flatnonzero(launch_of(trace)[rows] != NONE)
    events = trace.device_events.take(rows[: known[0]])
    events = events.take(events.start_ns >= since)
    if not len(events):
        return made
    begin, end = int(events.start_ns[0]), int(trace.device_events.start_ns[rows[known[0]]])
    low, high = union(events.start_ns, events.end_ns)
    in_lost = (found.end_ns > begin) & (found.end_ns < end)
    lost_us = int((high - low).sum()) / 1e3
    gap_us = int((found.device_gap_ns + found.unattributed_ns)[in_lost].sum()) / 1e3
    launched_us = max(0, begin - int(launches.since[0])) / 1e3  # at the latest
    launching = max(0.0, float(made.work.host_us[0]) - launched_us)
    work = _behind(
        made.work, host_us=launched_us, launch_us=launching, gap_us=0.0, busy_us=lost_us, inner_us=gap_us,
        puts=True, waits=False,
    )  # fmt: skip
    made = _behind(
        replace(made, work=work), fixed_us=0.0, elsewhere_us=0.0, events=1, step=int(made.step[0]),
        nodes=len(events), in_graph=False, is_upload=False, opens=True,
    )  # fmt: skip
    # The second row had this work, and opened the step.
    work.host_us[1] = 0.0
    work.busy_us[1] = max(0.0, work.busy_us[1] - lost_us)
    work.gap_us[1] = max(0.0, work.gap_us[1] - gap_us)
    made.nodes[1] -= len(events)
    made.opens[1] = False
    return made


_Rows = TypeVar("_Rows", Work, Replay)


def _behind(value: _Rows, **first: float) -> _Rows:
    """The same rows behind a first one of these figures."""
    columns: dict[str, Any] = {
        name: np.append(one, getattr(value, name)) for name, one in first.items()
    }
    return replace(value, **columns)


def _owner(call: Ints, calls: Ints) -> Ints:
    """The place among `calls` of each event's launch; -1 for launches that are not among them."""
    wanted = call
    if (call == NONE).any():
        known = np.flatnonzero(call != NONE)
        nearest = np.minimum(np.searchsorted(known, np.arange(len(call))), len(known) - 1)
        wanted = call[known[nearest]]
    place = np.full(int(wanted.max()) + 1, NONE, np.int64)
    mine = calls < len(place)
    place[calls[mine]] = np.flatnonzero(mine)
    owner: Ints = place[wanted]
    return owner


def _is_one_stream(trace: Trace, device: int) -> bool:
    """Whether all work is on one stream of one device. An event that this stream waits for is then reached as soon
    as it is recorded: autograd waits for streams that a capture used and that have no work."""
    streams = trace.device_events.stream[events_of(trace, device)]
    return len(trace.devices) == 1 and bool((streams == streams[0]).all())


def _latency_us(trace: Trace, found: Gaps, profile: DeviceProfile) -> float:
    """From a launch to its start on a device that idles: the trace's median, else the profile's."""
    direct = np.flatnonzero(found.launch_path_ns > 0)
    issued = trace.calls.start_ns[found.call[direct]] if len(direct) else found.start_ns[:0]
    seen = issued >= found.start_ns[direct]
    if not seen.any():
        return profile.launch_latency_us.mid
    return median((found.end_ns[direct] - issued)[seen]) / 1e3
