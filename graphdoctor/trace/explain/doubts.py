"""A Trace and its steps -> what makes its figures less certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graphdoctor.trace.api import is_graph_launch, is_kernel_launch
from graphdoctor.trace.arrays import Ints, Trace
from graphdoctor.trace.explain.gaps import Gaps, events_of
from graphdoctor.trace.explain.graph_use import in_graphs
from graphdoctor.trace.explain.hosts import within
from graphdoctor.trace.explain.issuing import FULL_QUEUE
from graphdoctor.trace.explain.lanes import Lanes
from graphdoctor.trace.explain.queue import depth_at_launch
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.steps import Steps
from graphdoctor.trace.windows import Window, inside
from graphdoctor.values.trace import Doubt

_MUCH = 0.02  # of the events or of the span: worth a word
_LONG_QUEUED_NS = 200_000  # no scheduler leaves queued work alone for so long
_SKEW_NS = 1_000
_FULL = "Command Buffer Full"  # what the profiler calls a wait for the launch queue


def doubts(trace: Trace, device: int, steps: Steps, found: Gaps, times: Lanes) -> tuple[Doubt, ...]:
    """All of them, the profiler's own slowness left out: that one is always there."""
    rows = events_of(trace, device)
    windows = steps.windows
    return (
        *_lost(trace, rows, steps, times),
        *_graphs(trace, rows, steps),
        *_queued(found, windows, times),
        *_full_queue(trace, device, steps),
        *_clock(trace, rows),
        *_uneven(steps),
    )


def _lost(trace: Trace, rows: Ints, steps: Steps, times: Lanes) -> Iterator[Doubt]:
    missing = times.events - times.joined
    if times.events and missing / times.events > _MUCH:
        yield Doubt(
            "lost-launches",
            f"{missing:,} of {times.events:,} device events have no launch in the trace: the profiler"
            f" dropped records, and {times.unattributed_ns / 1e3:,.0f} us idle stay unexplained.",
        )
    calls = trace.calls
    launching = trace.named(calls, is_kernel_launch)
    counted = launching & within(calls, steps.hosts)
    issued = int(counted.sum())
    began = np.zeros(len(calls), np.bool_)
    all_calls = launch_of(trace)
    began[all_calls[all_calls != NONE]] = True
    silent = int((counted & ~began).sum())
    if issued and silent / issued > _MUCH:
        yield Doubt(
            "lost-kernels",
            f"{silent:,} of {issued:,} kernel launches have no kernel in the trace: the device is"
            " busier than the trace shows.",
        )


def _graphs(trace: Trace, rows: Ints, steps: Steps) -> Iterator[Doubt]:
    in_graph = in_graphs(trace, rows)
    graph_calls = trace.named(trace.calls, is_graph_launch)
    counted = np.flatnonzero(graph_calls & within(trace.calls, steps.hosts))
    nodes = np.bincount(
        np.searchsorted(counted, launch_of(trace)[np.isin(launch_of(trace), counted)]),
        minlength=len(counted),
    )
    empty = int((nodes == 0).sum())
    if empty:
        yield Doubt(
            "incomplete-graphs",
            f"{empty:,} of {len(counted):,} graph launches have no kernel in the trace: idle time is"
            " unreliable, only wall time tells how busy the device was.",
        )
    if in_graph.sum() > len(counted) > 0 and nodes.max(initial=0) > 1:
        yield Doubt(
            "graph-nodes-traced",
            "The nodes of graphs were traced one by one, which stretches the gaps between them: do"
            " not judge captured graphs by this trace, but by wall time.",
        )


def _queued(found: Gaps, windows: Sequence[Window], times: Lanes) -> Iterator[Doubt]:
    counted = inside(found.end_ns, windows, closed="right")
    long = int(found.device_gap_ns[counted & (found.device_gap_ns > _LONG_QUEUED_NS)].sum())
    if times.span_ns and long / times.span_ns > _MUCH:
        yield Doubt(
            "idle-with-work-queued",
            f"For {long / times.span_ns:.0%} of the time the device did nothing although work was"
            " queued: it waited for another device or stream, or the profiler dropped what ran.",
        )


def _full_queue(trace: Trace, device: int, steps: Steps) -> Iterator[Doubt]:
    full = int(trace.named(trace.overheads, _FULL.__eq__).sum())
    calls, depth = depth_at_launch(trace, device)
    counted = within(trace.calls.take(calls), steps.hosts)
    deep = int((depth[counted] >= FULL_QUEUE).sum())
    if full or deep:
        what = (
            f"{full:,} times by its own word" if full else f"at {deep:,} launches by their number"
        )
        yield Doubt(
            "queue-full",
            f"The launch queue was full ({what}): long launches there are waits for a busy"
            " device, and were not counted as work of the host.",
            corrected=True,
        )


def _clock(trace: Trace, rows: Ints) -> Iterator[Doubt]:
    call = launch_of(trace)[rows]
    known = call != NONE
    if not known.any():
        return
    early = trace.calls.start_ns[call[known]] - trace.device_events.start_ns[rows[known]]
    count = int((early > _SKEW_NS).sum())
    if count:
        yield Doubt(
            "clock-skew",
            f"{count:,} device events begin before their launch, by up to {early.max() / 1e3:,.0f}"
            " us: the clocks of host and device disagree.",
        )


def _uneven(steps: Steps) -> Iterator[Doubt]:
    odd = [step for step in steps.all if step.left_out]
    if odd:
        yield Doubt(
            "steps-left-out",
            f"{len(odd)} of {len(steps.all)} steps do not count; {odd[0].name}: {odd[0].left_out}.",
            corrected=True,
        )
