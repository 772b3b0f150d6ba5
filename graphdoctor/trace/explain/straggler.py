"""The rank that comes last to collectives -> what it did before them, and in which phase of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphdoctor.trace.api import is_backward, is_collective_mark, is_step_mark
from graphdoctor.trace.arrays import Ints, Spans, Trace
from graphdoctor.trace.explain.activity import activity
from graphdoctor.trace.explain.gap_causes import doings
from graphdoctor.trace.explain.gaps import events_of, gaps
from graphdoctor.trace.explain.lanes import busiest_device
from graphdoctor.trace.explain.rank_lanes import Aligned
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.kernel_families import COMMUNICATION
from graphdoctor.trace.nesting import NONE, innermost, nest, outermost, value_at
from graphdoctor.trace.windows import Window, covered_ns_of
from graphdoctor.values.trace import GapCause, TraceReport

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
    computes = _beside(found.compute_ns, late)
    idles = _beside(found.idle_ns, late)
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


def _beside(times: Ints, late: tuple[int, Ints]) -> tuple[int, float]:
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
    cause = _cause(causes[0]) if causes else ""
    return _most(phases, length), cause


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
    named = trace.annotations.take(trace.named(trace.annotations, _is_phase))
    in_backward = _outermost(backward, threads, moments) != NONE
    around = value_at(named.name, _outermost(named, threads, moments))
    return [
        "the backward pass" if is_in else _name(trace.text(name))
        for is_in, name in zip(in_backward.tolist(), around.tolist(), strict=True)
    ]


def _is_phase(name: str) -> bool:
    return not is_step_mark(name) and not is_collective_mark(name)


def _name(annotation: str) -> str:
    return "the optimizer" if annotation.startswith(_OPTIMIZER) else annotation.strip("# ")


def _outermost(spans: Spans, threads: Ints, moments: Ints) -> Ints:
    """For each moment on a thread, the row of the outermost of these spans around it, or -1."""
    nesting = nest(spans)
    return outermost(nesting, innermost(spans, nesting, moments, threads))
