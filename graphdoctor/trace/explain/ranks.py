"""Compare the ranks of a job by the collectives that all of them run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from graphdoctor.trace.api import (
    COMMUNICATION,
    SEND_RECV,
    is_backward,
    is_collective_mark,
    is_step_mark,
)
from graphdoctor.trace.arrays import Ints, Spans, Trace
from graphdoctor.trace.explain.device_work import are_collectives, messages_of
from graphdoctor.trace.explain.gap_causes import activity, doings
from graphdoctor.trace.explain.gaps import busiest_device, events_of, gaps
from graphdoctor.trace.intervals import (
    NONE,
    Window,
    covered_ns_of,
    innermost,
    nest,
    outermost,
    union,
    value_at,
)
from graphdoctor.trace.join import launch_of
from graphdoctor.values.figures import count_text
from graphdoctor.values.trace import CollectiveWait, GapCause, RankComparison, RankTime, TraceReport

_MOST_SHIFT = 64  # collectives that one rank's profiler saw and another's did not, at an end
_ALIKE = 0.95
_FEWEST = 4
_LEAST_APART_NS = 50_000  # of the ends of one collective, once clocks agree


@dataclass(frozen=True, slots=True, eq=False)
class RankLane:
    """The collectives of one rank that all of their group take part in, in order.

    `groups` are the members of each one's process group, () where the trace does not say. `work_ns` are the
    stretches in which the device did anything else than communicate, `busy_ns` those in which it did anything, from
    `begin_ns` on.
    """

    kinds: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    start_ns: Ints
    end_ns: Ints
    work_ns: tuple[Ints, Ints]
    busy_ns: tuple[Ints, Ints]
    begin_ns: int
    exchanges: int = 0  # kernels of communication of all kinds

    @property
    def before_ns(self) -> Ints:
        """Where the time before each collective begins: at the end of the one before it."""
        last = np.append(self.begin_ns, self.end_ns[:-1]) if len(self.end_ns) else self.end_ns
        return np.minimum(last, self.start_ns)

    @property
    def compute_ns(self) -> Ints:
        """Other work of the device before each collective."""
        return covered_ns_of(self.work_ns, self.before_ns, self.start_ns)

    @property
    def idle_ns(self) -> Ints:
        """Time before each collective in which the device did nothing."""
        used = covered_ns_of(self.busy_ns, self.before_ns, self.start_ns)
        idle: Ints = self.start_ns - self.before_ns - used
        return idle

    def only(self, group: tuple[int, ...]) -> RankLane:
        """The collectives of this process group."""
        mine = [place for place, one in enumerate(self.groups) if one == group]
        return replace(
            self,
            kinds=tuple(self.kinds[place] for place in mine),
            groups=(group,) * len(mine),
            start_ns=self.start_ns[mine],
            end_ns=self.end_ns[mine],
        )


def rank_lane(trace: Trace) -> RankLane:
    events = trace.device_events
    rows = events_of(trace, busiest_device(trace))
    speaks = are_collectives(trace, rows)
    other, mine = rows[~speaks], rows[speaks]
    messages = messages_of(trace, mine)
    # All ranks of a group take part in these, unlike in a send, a receive, or a message to oneself.
    joint = [
        place
        for place, one in enumerate(messages)
        if one.collective != SEND_RECV and len(one.ranks) != 1
    ]
    return RankLane(
        kinds=tuple(messages[place].collective for place in joint),
        groups=tuple(messages[place].ranks for place in joint),
        start_ns=events.start_ns[mine[joint]],
        end_ns=events.end_ns[mine[joint]],
        work_ns=union(events.start_ns[other], events.end_ns[other]),
        busy_ns=union(events.start_ns[rows], events.end_ns[rows]),
        begin_ns=int(events.start_ns[rows[0]]),
        exchanges=len(mine),
    )


def compact(lane: RankLane) -> RankLane:
    """The lane with one stretch between two edges of collectives, as long as what it replaces.

    Collectives are compared by the time in stretches from edge to edge, and a rank has a kernel in each stretch.
    """
    edges = np.unique(np.concatenate(([lane.begin_ns], lane.start_ns, lane.end_ns)))

    def merged(stretches: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        covered = covered_ns_of(stretches, edges[:-1], edges[1:])
        low = edges[:-1][covered > 0]
        return low, low + covered[covered > 0]

    return replace(lane, work_ns=merged(lane.work_ns), busy_ns=merged(lane.busy_ns))


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """The collectives that all ranks have in common: a row for each rank, a column for each collective.

    Times are on each rank's own clock, which is `offset_ns` ahead of the first one's.
    """

    kinds: tuple[str, ...]
    offset_ns: Ints
    before_ns: Ints
    start_ns: Ints
    end_ns: Ints
    compute_ns: Ints
    idle_ns: Ints


def align(lanes: Sequence[RankLane], workers: Sequence[str]) -> Aligned | str:
    """A sentence where these lanes cannot be brought together."""
    few = min(zip(lanes, workers, strict=True), key=lambda pair: len(pair[0].kinds))
    if len(few[0].kinds) < _FEWEST:
        return (
            f"The trace of {few[1]} has {count_text(len(few[0].kinds), 'collective')} in which a whole"
            f" group takes part (and {few[0].exchanges:,} kernels of communication in all), fewer than the {_FEWEST}"
            " that it takes to bring clocks together, so the ranks cannot be compared."
        )
    group = _shared_group(lanes)
    if group is None:
        return (
            "These ranks have no process group in common whose collectives are in all of their traces, so"
            " they cannot be compared."
        )
    lanes = [lane.only(group) for lane in lanes]
    shifts: list[int] = []
    for lane, worker in zip(lanes, workers, strict=True):
        shift = _shift(lanes[0].kinds, lane.kinds)
        if shift is None:
            return _order(lanes[0], lane, workers[0], worker)
        shifts.append(shift)
    found = _beside(lanes, shifts)
    end = found.end_ns - found.offset_ns[:, None]
    apart = float(np.median(end.max(axis=0) - end.min(axis=0)))
    if apart > max(_LEAST_APART_NS, float(np.median(found.end_ns - found.start_ns)) / 2):
        return (
            "The collectives of these ranks do not end together (median difference"
            f" {apart / 1e3:,.0f} us): the ranks are not of one run, or not of one group."
        )
    return found


def _beside(lanes: Sequence[RankLane], shifts: Sequence[int]) -> Aligned:
    first = max(0, *(-shift for shift in shifts))
    last = min(len(lane.kinds) - shift for lane, shift in zip(lanes, shifts, strict=True))

    def together(column: str) -> Ints:
        return np.stack(
            [
                getattr(lane, column)[first + shift : last + shift]
                for lane, shift in zip(lanes, shifts, strict=True)
            ]
        )

    end = together("end_ns")
    return Aligned(
        kinds=lanes[0].kinds[first:last],
        offset_ns=np.median(end - end[0], axis=1).astype(np.int64),
        end_ns=end,
        before_ns=together("before_ns"),
        start_ns=together("start_ns"),
        compute_ns=together("compute_ns"),
        idle_ns=together("idle_ns"),
    )


def _shared_group(lanes: Sequence[RankLane]) -> tuple[int, ...] | None:
    """The process group in which all ranks take part most often; None where there is none."""
    counts = [Counter(lane.groups) for lane in lanes]
    shared = [
        group
        for group in counts[0]
        if (not group or len(group) >= len(lanes))
        and all(count[group] >= _FEWEST for count in counts)
    ]
    return max(shared, key=lambda group: (counts[0][group], group), default=None)


def _shift(reference: Sequence[str], kinds: Sequence[str]) -> int | None:
    """By how much the second list is to be moved to be like the first; None if it never is."""
    one, other = np.array(reference), np.array(kinds)
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        low, high = max(0, -shift), min(len(one), len(other) - shift)
        shared = high - low
        if shared < max(_FEWEST, min(len(one), len(other)) // 2):
            continue
        if (one[low:high] == other[low + shift : high + shift]).mean() >= _ALIKE:
            return shift
    return None


def _order(one: RankLane, other: RankLane, name: str, other_name: str) -> str:
    """Where the order of collectives first differs: real runs hang there."""
    pairs = enumerate(zip(one.kinds, other.kinds, strict=False))
    place, kinds = next(((n, kinds) for n, kinds in pairs if kinds[0] != kinds[1]), (0, ("", "")))
    return (
        f"The order of collectives differs: number {place + 1:,} is {kinds[0]} on {name} and {kinds[1]} on"
        f" {other_name}, so the ranks cannot be compared."
    )


_MAINLY = 0.5


class Delay(NamedTuple):
    """The straggler, the phase of the step in which most of its time before late collectives lies, "" if
    that is not known, and what it did in that time. Empty where no rank is a straggler."""

    worker: str = ""
    phase: str = ""
    reason: str = ""


def delay_of(
    trace: Trace,
    found: Aligned,
    late: tuple[int, Ints],
    reports: Sequence[TraceReport],
    steps: int,
) -> Delay:
    """`trace` is the straggler's; `late` its place among the ranks, and the collectives to which it came last."""
    worst, columns = late
    windows = list(
        zip(
            found.before_ns[worst, columns].tolist(),
            found.start_ns[worst, columns].tolist(),
            strict=True,
        )
    )
    kinds = [found.kinds[column] for column in columns.tolist()]
    before = max(sorted(set(kinds)), key=kinds.count)
    computes = _against_others(found.compute_ns, late)
    idles = _against_others(found.idle_ns, late)
    verb, mine, theirs = "computes", *computes
    is_computing = computes[0] - computes[1] >= idles[0] - idles[1]
    if not is_computing:
        verb, mine, theirs = "idles", *idles
    each = 1e3 * steps
    text = (
        f"before {before} its device {verb} for {mine / each:,.0f} us a step, the others for"
        f" {theirs / each:,.0f} us"
    )
    if is_computing:
        return Delay(
            reports[worst].worker,
            _phase_of_work(trace, windows),
            text + _slower_kernel(reports, worst),
        )
    phase, cause = _idle(trace, windows)
    return Delay(reports[worst].worker, phase, text + cause)


def _against_others(times: Ints, late: tuple[int, Ints]) -> tuple[int, float]:
    """What the straggler takes before its late collectives, and what the others do in the median."""
    worst, columns = late
    others = np.delete(np.arange(len(times)), worst)
    theirs = np.median(times[others][:, columns], axis=0).sum()
    return int(times[worst, columns].sum()), float(theirs)


def _phase_of_work(trace: Trace, windows: Sequence[Window]) -> str:
    """The phase that launched most of the device's time in these windows."""
    events, call = trace.device_events, launch_of(trace)
    rows = events_of(trace, busiest_device(trace))
    low, high = (np.array(edge, np.int64) for edge in zip(*windows, strict=True))
    time = covered_ns_of((low, high), events.start_ns[rows], events.end_ns[rows])
    rows, time = rows[call[rows] != NONE], time[call[rows] != NONE]
    calls = trace.calls.take(call[rows])
    return _most(phases_of(trace, calls.thread, calls.start_ns), time)


def _idle(trace: Trace, windows: Sequence[Window]) -> tuple[str, str]:
    """The phase in which most of the idle time of these windows passes, and what the host did in it."""
    found = gaps(trace, busiest_device(trace))
    acted = activity(trace, found, windows)
    waiting = acted.waiting
    length = waiting.high_ns - waiting.low_ns
    phases = phases_of(trace, waiting.thread, (waiting.low_ns + waiting.high_ns) // 2)
    idle = int(length.sum())
    causes = doings(trace, acted, 1, idle, 1).causes
    return _most(phases, length), "".join(map(_cause, causes))


def _cause(cause: GapCause) -> str:
    place = f" at {cause.location.file}:{cause.location.line}" if cause.location else ""
    name = cause.name or "nothing that the profiler recorded"
    return f"; {cause.share:.0%} of that the host is in {name}{place}"


def _most(phases: Sequence[str], time_ns: Ints) -> str:
    """The phase with most of the time; "" where none has more than half."""
    total = int(time_ns.sum())
    for phase in sorted(set(phases)):
        if int(time_ns[[one == phase for one in phases]].sum()) > _MAINLY * total:
            return phase
    return ""


def _slower_kernel(reports: Sequence[TraceReport], worst: int) -> str:
    """The kernel that costs the rank most more than it costs the others in the median."""
    others = [report for place, report in enumerate(reports) if place != worst]
    known = [{one.name: one.device_us for one in other.work.kernels} for other in others]
    more = {
        one.name: (one.device_us, float(np.median([times.get(one.name, 0.0) for times in known])))
        for one in reports[worst].work.kernels
        if one.family != COMMUNICATION
    }
    if not more:
        return ""
    name = max(more, key=lambda name: more[name][0] - more[name][1])
    mine, theirs = more[name]
    return f"; most of it in {name[:60]} ({mine:,.0f} us against {theirs:,.0f})"


_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")


def phases_of(trace: Trace, threads: Ints, moments: Ints) -> list[str]:
    """What autograd runs is the backward pass; all else has the name of the outermost annotation around it.

    "" where nothing says.
    """
    backward = trace.operators.take(trace.named(trace.operators, is_backward))
    named = trace.annotations.take(
        trace.named(
            trace.annotations,
            lambda name: not is_step_mark(name) and not is_collective_mark(name),
        )
    )
    in_backward = _outermost(backward, threads, moments) != NONE
    around = value_at(named.name, _outermost(named, threads, moments))
    found = []
    for is_in, name in zip(in_backward.tolist(), map(trace.text, around.tolist()), strict=True):
        is_optimizer = name.startswith(_OPTIMIZER)
        usual = "the optimizer" if is_optimizer else name.strip("# ")
        found.append("the backward pass" if is_in else usual)
    return found


def _outermost(spans: Spans, threads: Ints, moments: Ints) -> Ints:
    """For each moment on a thread, the row of the outermost of these spans around it, or -1."""
    nesting = nest(spans)
    return outermost(nesting, innermost(spans, nesting, moments, threads))


_WORTH = 0.01  # of a step


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
    delay = Delay()
    if (
        ranks[worst].caused_us > _WORTH * reports[worst].step_us
        and caused[worst] > _MAINLY * caused.sum()
    ):
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
