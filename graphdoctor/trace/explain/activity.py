"""Times in which the device waits for the host -> what the host did in them, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from graphdoctor.trace.api import is_step_mark
from graphdoctor.trace.arrays import Ints, Spans, Trace, together
from graphdoctor.trace.explain.gaps import Gaps
from graphdoctor.trace.explain.hosts import is_user_frame
from graphdoctor.trace.explain.known_work import known_work
from graphdoctor.trace.nesting import NONE, Nesting, inherited, innermost, nest
from graphdoctor.trace.windows import Window, covered_ns_of, inside
from graphdoctor.values.trace import WorkKind

KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
_HALF = 2


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Stretches in which the device waited and the host had not launched yet, in order of time.

    `gap` is the place of each among the gaps, `thread` whose doing explains it.
    """

    gap: Ints
    low_ns: Ints
    high_ns: Ints
    thread: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """The spans of host threads around the stretches, and the waiting that each explains itself.

    `until_ns` is where a span ends, at the latest where one beside it begins. `kind` is a place in KINDS, `line` the
    name of the user's innermost function or -1, both of the span itself or of what is around it.
    """

    waiting: Waiting
    spans: Spans
    nesting: Nesting
    until_ns: Ints
    own_ns: Ints
    kind: Ints
    line: Ints

    @property
    def unrecorded_ns(self) -> int:
        """Waiting in which the profiler saw nothing of the host."""
        return int((self.waiting.high_ns - self.waiting.low_ns).sum() - self.own_ns.sum())


def activity(trace: Trace, found: Gaps, windows: Sequence[Window]) -> Activity:
    """What the host did in the gaps within the windows that end with a launch it was late for."""
    counted = inside(found.end_ns, windows, closed="right")
    length = found.sync_wait_ns + found.host_ns
    gap = np.flatnonzero(counted & (length > 0))
    low, high = found.start_ns[gap], found.start_ns[gap] + length[gap]
    launching = trace.calls.thread[found.call[gap]] if len(gap) else gap
    spans = _host_spans(trace, low, high)
    thread = _explaining_threads(spans, low, high, launching)
    waiting = Waiting(gap, low, high, thread)
    spans = _explaining(spans, waiting)
    nesting = nest(spans)
    own = np.zeros(len(spans), np.int64)
    until = _ends(spans, nesting)
    for one, stretches in _by_thread(waiting):
        mine = nesting.rows.get(one, waiting.gap[:0])
        own[mine] = covered_ns_of(stretches, spans.start_ns[mine], until[mine])
    inner = np.flatnonzero(nesting.parent != NONE)
    np.subtract.at(own, nesting.parent[inner], own[inner].copy())
    kinds, lines = _meanings(trace, spans)
    return Activity(
        waiting=waiting,
        spans=spans,
        nesting=nesting,
        until_ns=until,
        own_ns=np.maximum(own, 0),
        kind=_known_or_ordinary(inherited(kinds, nesting.parent)),
        line=inherited(lines, nesting.parent),
    )


def doing(found: Activity, gaps: Ints) -> Ints:
    """For each of these gaps, the row of the span that the host was in in the middle of it, or -1."""
    waiting = found.waiting
    place = np.minimum(np.searchsorted(waiting.gap, gaps), max(0, len(waiting.gap) - 1))
    if not len(waiting.gap):
        return np.full(len(gaps), NONE, np.int64)
    middle = (waiting.low_ns[place] + waiting.high_ns[place]) // _HALF
    row = innermost(found.spans, found.nesting, middle, waiting.thread[place])
    known: Ints = np.where(waiting.gap[place] == gaps, row, NONE)
    return known


def _host_spans(trace: Trace, low: Ints, high: Ints) -> Spans:
    """Everything that the profiler saw of the host in these stretches, by start."""
    annotations = trace.annotations.take(~trace.named(trace.annotations, is_step_mark))
    tables = (trace.operators, trace.frames, annotations, trace.calls, trace.overheads)
    return together(
        [
            table.take(covered_ns_of((low, high), table.start_ns, table.end_ns) > 0)
            for table in tables
        ]
    )


def _explaining_threads(spans: Spans, low: Ints, high: Ints, launching: Ints) -> Ints:
    """The launching thread; where nothing is known of it, the one that launched before.

    The backward pass is launched by a thread that sleeps while the main thread works.
    """
    before = np.append(launching[:1], launching[:-1])
    asked = before != launching
    if not asked.any():
        return launching
    seen = np.zeros(len(low), np.int64)
    for one in sorted(set(launching[asked].tolist())):
        stretches = spans.take(spans.thread == one)
        outer = stretches.take(nest(stretches).is_outermost)
        mine = asked & (launching == one)
        seen[mine] = covered_ns_of((outer.start_ns, outer.end_ns), low[mine], high[mine])
    found: Ints = np.where(asked & (_HALF * seen < high - low), before, launching)
    return found


def _explaining(spans: Spans, waiting: Waiting) -> Spans:
    """The spans, each of which lies in some stretch, that lie in a stretch which their own thread explains."""
    if len(set(waiting.thread.tolist())) == 1:
        return spans.take(spans.thread == waiting.thread[0])
    covered = np.zeros(len(spans), np.int64)
    for one, stretches in _by_thread(waiting):
        mine = np.flatnonzero(spans.thread == one)
        covered[mine] = covered_ns_of(stretches, spans.start_ns[mine], spans.end_ns[mine])
    return spans.take(covered > 0)


def _by_thread(waiting: Waiting) -> Iterator[tuple[int, tuple[Ints, Ints]]]:
    for one in sorted(set(waiting.thread.tolist())):
        mine = waiting.thread == one
        yield one, (waiting.low_ns[mine], waiting.high_ns[mine])


def _ends(spans: Spans, nesting: Nesting) -> Ints:
    """The end of each span, at most that of the span around it and the start of the next beside it.

    An annotation that begins inside of a function and outlives it crosses the function's span.
    """
    order = np.lexsort((spans.thread, nesting.parent))
    until = spans.end_ns.copy()
    here, after = order[:-1], order[1:]
    beside = (nesting.parent[here] == nesting.parent[after]) & (
        spans.thread[here] == spans.thread[after]
    )
    here, after = here[beside], after[beside]
    until[here] = np.minimum(until[here], spans.start_ns[after])
    inner = nesting.parent != NONE
    while True:
        clipped = np.where(inner, np.minimum(until, until[nesting.parent]), until)
        if (clipped == until).all():
            return until
        until = clipped


def _meanings(trace: Trace, spans: Spans) -> tuple[Ints, Ints]:
    """Each span's own kind of work, and its name where it is the user's function; else -1."""
    used = np.zeros(len(trace.names), np.bool_)
    used[spans.name] = True
    frames = np.zeros(len(trace.names), np.bool_)
    frames[trace.frames.name] = True
    kind, line = (np.full(len(trace.names), NONE, np.int64) for _ in range(2))
    for name in np.flatnonzero(used).tolist():
        known = known_work(trace.names[name])
        kind[name] = KINDS.index(known) if known is not None else NONE
        if frames[name] and is_user_frame(trace.names[name]):
            line[name] = name
    return kind[spans.name], line[spans.name]


def _known_or_ordinary(kind: Ints) -> Ints:
    return np.where(kind == NONE, KINDS.index("ordinary"), kind)


def silent_beside_python(trace: Trace, found: Activity) -> tuple[Ints, Ints]:
    """For each stretch how long nothing began or ended on its thread around its middle, and how much
    Python other threads began meanwhile: 0 where that silence is less than half of the stretch.
    """
    waiting = found.waiting
    silence, python = (np.zeros(len(waiting.gap), np.int64) for _ in range(2))
    held = trace.named(trace.frames, lambda name: known_work(name) in ("lock", "sleep"))
    frames = trace.frames.take(~held)
    for one, (low, high) in _by_thread(waiting) if len(frames) else ():
        other = frames.start_ns[frames.thread != one]
        if not len(other):
            continue
        mine = waiting.thread == one
        spans = found.spans.take(found.spans.thread == one)
        edges = np.sort(np.concatenate((spans.start_ns, spans.end_ns, low, high)))
        middle = (low + high) // _HALF
        after = np.searchsorted(edges, middle, side="right")
        begin, end = edges[after - 1], edges[np.minimum(after, len(edges) - 1)]
        began = np.searchsorted(other, end) - np.searchsorted(other, begin)
        silence[mine] = end - begin
        python[mine] = np.where(_HALF * (end - begin) >= high - low, began, 0)
    return silence, python
