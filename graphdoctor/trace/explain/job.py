"""Summarize the ranks of a folder as one job: the slowest and why, groups that behave alike, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import structs

from graphdoctor.trace.arrays import median_of
from graphdoctor.values.compared_traces import Job, RankComparison, RankGroup
from graphdoctor.values.figures import Range, time_text
from graphdoctor.values.trace import TraceReport

_ALIKE = 0.1  # of the time, in each share
_APART = 0.02  # of the median step
_MUCH = 0.3  # of a step
MOST_IN_FULL = 16  # ranks that keep their lanes, gaps and long lists
_FEW_ROWS = 3


def communication_share(report: TraceReport) -> float:
    """Return which share of a step collectives take beside which nothing else runs."""
    found = report.work.communication
    return found.exposed_us / report.step_us if found and report.step_us else 0.0


_SHARES: dict[str, Callable[[TraceReport], float]] = {
    "device_busy_share": lambda report: report.device_busy_share,
    "launch_bound_share": lambda report: report.launch_bound_share,
    "sync_wait_share": lambda report: report.sync_wait_share,
    "communication_share": communication_share,
}


def summarize(workers: Sequence[TraceReport], ranks: RankComparison | None) -> Job | None:
    """Summarize the ranks; None for fewer than two."""
    if len(workers) < 2:
        return None
    groups = sorted(_groups(workers), key=lambda group: -len(group))
    step_us, exposed = (
        _range(workers, lambda one: one.step_us),
        _range(workers, communication_share),
    )
    slowest, reason = _slowest(workers, ranks, step_us)
    described = tuple(_describe(group) for group in groups)
    advice = described[0].advice
    if ranks is not None and ranks.straggler:
        advice = f"Start with {ranks.straggler}: the other ranks wait for it, whatever else they wait for."
    elif exposed.mid > _MUCH:
        advice = (
            f"Collectives take {exposed.mid:.0%} of a step with nothing beside them: overlap them with computation,"
            " or send less."
        )
    return Job(
        slowest=slowest,
        reason=reason,
        advice=advice,
        step_us=step_us,
        communication_share=exposed,
        groups=described,
    )


def _groups(workers: Sequence[TraceReport]) -> list[list[TraceReport]]:
    groups: list[list[TraceReport]] = []
    for worker in workers:
        for group in groups:
            if all(abs(share(worker) - share(group[0])) <= _ALIKE for share in _SHARES.values()):
                group.append(worker)
                break
        else:
            groups.append([worker])
    return groups


def _describe(group: Sequence[TraceReport]) -> RankGroup:
    (verdict, _), *_ = Counter(one.verdict for one in group).most_common(1)
    first = next(one for one in group if one.verdict == verdict)
    return RankGroup(
        workers=tuple(one.worker for one in group),
        verdict=verdict,
        reason=first.reason,
        advice=first.advice,
        step_us=_range(group, lambda one: one.step_us),
        **{name: _range(group, share) for name, share in _SHARES.items()},
    )


def _range(workers: Sequence[TraceReport], figure: Callable[[TraceReport], float]) -> Range:
    values = [figure(one) for one in workers]
    return Range(min(values), median_of(values), max(values))


def _slowest(
    workers: Sequence[TraceReport], ranks: RankComparison | None, step_us: Range
) -> tuple[str, str]:
    """The rank that holds up the job, and why: by the collectives, else by its step."""
    if ranks is not None and ranks.straggler:
        caused = max(rank.caused_us for rank in ranks.ranks)
        phase = f"in {ranks.phase}, " if ranks.phase else ""
        return ranks.straggler, (
            f"{ranks.straggler} comes last, and the others wait {time_text(caused)} for it:"
            f" {phase}{ranks.reason}."
        )
    if step_us.high - step_us.low <= _APART * step_us.mid:
        return "", f"All {len(workers):,} ranks take {time_text(step_us.mid)} a step."
    worst = max(workers, key=lambda one: one.step_us)
    usual = [_parts_us(one) for one in workers]
    more = {
        name: (value, median_of([parts[name] for parts in usual]))
        for name, value in _parts_us(worst).items()
    }
    name, (mine, theirs) = max(more.items(), key=lambda pair: pair[1][0] - pair[1][1])
    return worst.worker, (
        f"{worst.worker} is the slowest with {time_text(worst.step_us)} a step, {time_text(step_us.mid)} in the"
        f" median. It spends {time_text(mine)} {name}, {time_text(theirs)} in the median."
    )


def _parts_us(report: TraceReport) -> dict[str, float]:
    """Where a step goes on this rank's device."""
    each = 1e3 * report.steps_counted
    exposed = communication_share(report) * report.step_us
    return {
        "computing": report.device_busy_ns / each - exposed,
        "in collectives": exposed,
        "waiting for launches": report.launch_bound_ns / each,
        "waiting for a host that waits for results": report.sync_wait_ns / each,
        "idle with work queued": report.device_gap_ns / each,
        "idle for an unknown reason": report.unattributed_ns / each,
    }


def in_full(workers: Sequence[TraceReport], job: Job | None) -> list[int]:
    """Return which ranks keep their lanes, gaps and long lists: the slowest, the fastest, one of each group."""
    if job is None or len(workers) <= MOST_IN_FULL:
        return list(range(len(workers)))
    by_step = sorted(range(len(workers)), key=lambda place: workers[place].step_us)
    names = [worker.worker for worker in workers]
    named = [job.slowest, *(group.workers[0] for group in job.groups)]
    wanted = [by_step[-1], by_step[0], *(names.index(name) for name in named if name)]
    return sorted(dict.fromkeys(wanted[:MOST_IN_FULL]))


def shortened(report: TraceReport) -> TraceReport:
    """Return the report without lanes and gaps, with short lists; kernels stay, by which ranks are compared."""
    lists = ("lines", "modules", "annotations")
    work = structs.replace(
        report.work, **{name: getattr(report.work, name)[:_FEW_ROWS] for name in lists}
    )
    names = ("syncs", "operators", "lines", "gap_causes", "idle_kinds", "launches", "steps")
    return structs.replace(
        report,
        **{name: getattr(report, name)[:_FEW_ROWS] for name in names},
        work=work,
        drawn=None,
        longest_gaps=(),
        queue=structs.replace(report.queue, points=()),
    )
