"""The collectives of several ranks -> their clocks brought together, who waits, and who is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphdoctor.trace.arrays import Ints, Message, Trace
from graphdoctor.trace.explain.communication import are_collectives, messages_of
from graphdoctor.trace.explain.gaps import events_of
from graphdoctor.trace.explain.lanes import busiest_device
from graphdoctor.trace.kernel_families import COMMUNICATION
from graphdoctor.trace.windows import covered_ns_of, union
from graphdoctor.values.compared_traces import CollectiveWait, RankComparison, RankTime
from graphdoctor.values.figures import count_text
from graphdoctor.values.trace import TraceReport

_MOST_SHIFT = 64  # collectives that one rank's profiler saw and another's did not, at an end
_ALIKE = 0.95
_FEWEST = 4
_LEAST_APART_NS = 50_000  # of the ends of one collective, once clocks agree
_WORTH = 0.01  # of a step
_MAINLY = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class RankLane:
    """The collectives of one rank that all of their group take part in, in order.

    `groups` are the members of each one's process group, () where the trace does not say. `work_ns` are the
    stretches in which the device did anything else, from `begin_ns` on.
    """

    kinds: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    start_ns: Ints
    end_ns: Ints
    work_ns: tuple[Ints, Ints]
    begin_ns: int
    exchanges: int = 0  # kernels of communication of all kinds

    @property
    def compute_ns(self) -> Ints:
        """Other work of the device between each collective and the one before it."""
        before = np.append(self.begin_ns, self.end_ns[:-1]) if len(self.end_ns) else self.end_ns
        return covered_ns_of(self.work_ns, np.minimum(before, self.start_ns), self.start_ns)

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
    joint = [place for place, one in enumerate(messages) if _is_joint(one)]
    return RankLane(
        kinds=tuple(messages[place].collective for place in joint),
        groups=tuple(messages[place].ranks for place in joint),
        start_ns=events.start_ns[mine[joint]],
        end_ns=events.end_ns[mine[joint]],
        work_ns=union(events.start_ns[other], events.end_ns[other]),
        begin_ns=int(events.start_ns[rows[0]]),
        exchanges=len(mine),
    )


def _is_joint(message: Message) -> bool:
    """Whether all ranks of a group take part: not so in a send or a receive, or with oneself."""
    return message.collective != "send_recv" and len(message.ranks) != 1


def compare_ranks(
    lanes: Sequence[RankLane], reports: Sequence[TraceReport]
) -> RankComparison | None:
    """None where there is one rank only, or where nothing is communicated."""
    if len(lanes) < 2 or not any(lane.exchanges for lane in lanes):
        return None
    few = min(zip(lanes, reports, strict=True), key=lambda pair: len(pair[0].kinds))
    if len(few[0].kinds) < _FEWEST:
        return RankComparison(
            problem=f"The trace of {few[1].worker} has {count_text(len(few[0].kinds), 'collective')} in which a whole"
            f" group takes part (and {few[0].exchanges:,} kernels of communication in all), fewer than the {_FEWEST}"
            " that it takes to bring clocks together, so the ranks cannot be compared."
        )
    group = _shared_group(lanes)
    if group is None:
        return RankComparison(
            problem="These ranks have no process group in common whose collectives are in all of their traces, so"
            " they cannot be compared."
        )
    lanes = [lane.only(group) for lane in lanes]
    labels = [report.worker for report in reports]
    shifts = [_shift(lanes[0].kinds, lane.kinds) for lane in lanes]
    for place, shift in enumerate(shifts):
        if shift is None:
            return RankComparison(problem=_order(lanes[0], lanes[place], labels[0], labels[place]))
    begins = [shift or 0 for shift in shifts]
    first = max(0, *(-shift for shift in begins))
    last = min(len(lane.kinds) - shift for lane, shift in zip(lanes, begins, strict=True))

    def together(column: str) -> Ints:
        return np.stack(
            [
                getattr(lane, column)[first + shift : last + shift]
                for lane, shift in zip(lanes, begins, strict=True)
            ]
        )

    start, end, compute = (together(name) for name in ("start_ns", "end_ns", "compute_ns"))
    offset = np.median(end - end[0], axis=1).astype(np.int64)
    start, end = start - offset[:, None], end - offset[:, None]
    apart = float(np.median(end.max(axis=0) - end.min(axis=0)))
    if apart > max(_LEAST_APART_NS, float(np.median(end - start)) / 2):
        return RankComparison(
            problem=f"The collectives of these ranks do not end together ({apart / 1e3:,.0f} us apart in the"
            " median): they are not of one run, or not of one group."
        )
    steps = max(1, min(report.steps_counted for report in reports))
    return _compared(reports, offset, (start, end, compute), lanes[0].kinds[first:last], steps)


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


def _compared(
    reports: Sequence[TraceReport],
    offset: Ints,
    times: tuple[Ints, Ints, Ints],
    kinds: Sequence[str],
    steps: int,
) -> RankComparison:
    start, end, compute = times
    latest = start.max(axis=0)
    second = np.sort(start, axis=0)[-2]
    waiting = np.clip(latest - start, 0, end - start)
    who = start.argmax(axis=0)
    caused = np.bincount(who, latest - second, len(reports)).astype(np.int64)
    each = 1e3 * steps
    ranks = tuple(
        RankTime(
            worker=report.worker,
            clock_offset_us=int(offset[place]) / 1e3,
            waiting_us=int(waiting[place].sum()) / each,
            caused_us=int(caused[place]) / each,
            working_us=int((end - start - waiting)[place].sum()) / each,
            compute_us=int(compute[place].sum()) / each,
        )
        for place, report in enumerate(reports)
    )
    worst = int(caused.argmax())
    step_us = reports[worst].span_ns / 1e3 / reports[worst].steps_counted
    is_straggler = (
        ranks[worst].caused_us > _WORTH * step_us and caused[worst] > _MAINLY * caused.sum()
    )
    return RankComparison(
        ranks=ranks,
        collectives=len(kinds),
        waits=tuple(_waits_by_kind(kinds, waiting, end - start - waiting, steps)),
        skew_us=float(np.median(latest - start.min(axis=0))) / 1e3,
        straggler=reports[worst].worker if is_straggler else "",
        reason=_reason(reports, worst, who == worst, times, kinds, steps) if is_straggler else "",
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


def _reason(
    reports: Sequence[TraceReport],
    worst: int,
    late: Ints,
    times: tuple[Ints, Ints, Ints],
    kinds: Sequence[str],
    steps: int,
) -> str:
    """What the last rank did before the collectives to which it came last, beside the others."""
    start, end, compute = times
    begin = np.concatenate((start[:, :1], end[:, :-1]), axis=1)
    idle = np.maximum(start - begin - compute, 0)
    others = np.delete(np.arange(len(reports)), worst)
    mine, theirs = (
        (int(part[worst][late].sum()), float(np.median(part[others][:, late], axis=0).sum()))
        for part in (compute, idle)
    )
    before = max(set(kinds), key=lambda kind: sum(np.array(kinds)[late] == kind))
    each = 1e3 * steps
    if mine[0] - mine[1] >= theirs[0] - theirs[1]:
        text = (
            f"before {before} its device computes for {mine[0] / each:,.0f} us a step, the others for"
            f" {mine[1] / each:,.0f} us"
        )
        return text + _slower_kernel(reports, worst)
    text = (
        f"before {before} its device idles for {theirs[0] / each:,.0f} us a step, the others for"
        f" {theirs[1] / each:,.0f} us"
    )
    cause = next(iter(reports[worst].gap_causes), None)
    if cause is None or not cause.name:
        return text
    place = f" at {cause.location.file}:{cause.location.line}" if cause.location else ""
    return f"{text}; most of its idle time is in {cause.name}{place}"


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
