"""A profiler trace and an unprofiled wall time in, the Estimate with basis "measured" out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from graphdoctor.errors import UsageError
from graphdoctor.estimate.ranges import around
from graphdoctor.model import Estimate, Range, Term
from graphdoctor.profiles import LEVELS, DeviceProfile, Level
from graphdoctor.trace import Lanes, Trace, lanes
from graphdoctor.trace.trace import GRAPH_LAUNCHES, is_launch

# How much torch.profiler slows the host: nothing, its usual factor, with shapes and stacks.
# Measured with torch 2.13 on a dispatch-bound model; pytorch/pytorch#82793 shows 1.7 on a GPU.
_PROFILER_FACTORS = (1.0, 1.7, 2.3)
_ENOUGH_EXPLAINED = 0.9


class _Step(Struct, frozen=True):
    """One step of the trace, in us, with its idle time scaled to the unprofiled wall time."""

    busy: float
    bound: float  # idle: the host had not launched
    waits: float  # idle: the host waited for a result
    dependent: float  # idle with work in the queue, beyond the usual gap between two kernels
    unexplained: float
    host_profiled: float
    nodes: float


def estimate_from_trace(trace: Trace, wall_us: float, profile: DeviceProfile) -> Estimate:
    """Launch-bound share and graph time of one step that really ran.

    Busy time comes from the trace, because the profiler slows the host and not the device;
    `wall_us` is the time of one step *without* a profiler, > 0. A graph removes idle time before
    launches and keeps the rest: waits for results, and queued work that waited for other streams.
    Raises UsageError when the trace has no device events.
    """
    found = lanes(trace)
    if not found.events:
        raise UsageError("The trace has no kernels: profile the step on a GPU, with CUDA activity.")
    step = _step(trace, found, wall_us, profile)
    graph = [_graph_us(step, profile, level) for level in LEVELS]
    host = [min(wall_us, step.host_profiled / factor) for factor in _PROFILER_FACTORS]
    share = step.bound / wall_us
    return Estimate(
        gpu=trace.device_names[0] if trace.device_names else profile.title,
        basis="measured",
        launches=round(found.launches / max(1, len(trace.steps))),
        host_us=around(host[1], host),
        device_busy_us=_exactly(step.busy),
        eager_us=_exactly(wall_us),
        graph_us=around(graph[1], graph),
        launch_bound_share=Range(share, share, share + step.unexplained / wall_us),
        speedup=around(wall_us / graph[1], [wall_us / value for value in graph]),
        terms=tuple(_terms(step, profile)),
        notes=tuple(_notes(trace, found, wall_us)),
    )


def _step(trace: Trace, found: Lanes, wall_us: float, profile: DeviceProfile) -> _Step:
    steps = max(1, len(trace.steps))
    busy = found.busy_ns / 1e3 / steps
    scale = max(0.0, wall_us - busy) / (found.idle_ns or 1)
    usual_gaps_ns = profile.queue_gap_us.high * 1e3 * found.events
    return _Step(
        busy=busy,
        bound=scale * found.launch_bound_ns,
        waits=scale * found.sync_drain_ns,
        dependent=scale * max(0.0, found.device_gap_ns - usual_gaps_ns),
        unexplained=scale * found.unattributed_ns,
        host_profiled=_host_ns(trace) / 1e3 / steps,
        nodes=found.events / steps,
    )


def _graph_us(step: _Step, profile: DeviceProfile, level: Level) -> float:
    """The step as one graph; only the optimistic case takes unexplained idle time to vanish."""
    gaps = max(0.0, step.nodes - 1) * profile.node_gap_us.at(level)
    kept = step.waits + step.dependent + (step.unexplained if level != "low" else 0.0)
    return step.busy + gaps + profile.graph_launch_us.at(level) + kept


def _host_ns(trace: Trace) -> int:
    """From the first operator to the last launch, less the time inside calls that wait."""
    launches = [call for call in trace.calls if is_launch(call)]
    spans = [(event.start_ns, event.end_ns) for event in trace.operators]
    spans += [(call.start_ns, call.end_ns) for call in launches]
    if not spans:
        return 0
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    waiting = sum(
        min(call.end_ns, end) - max(call.start_ns, start)
        for call in trace.calls
        if "Synchronize" in call.name and call.start_ns < end and call.end_ns > start
    )
    return max(0, end - start - waiting)


def _exactly(value: float) -> Range:
    return Range(value, value, value)


def _terms(step: _Step, profile: DeviceProfile) -> Iterator[Term]:
    anchored = "profiler trace, scaled to the unprofiled wall time"
    yield Term("device busy", f"{step.busy:.1f} us", "profiler trace, all streams together")
    yield Term("idle before launches", f"{step.bound:.1f} us", anchored)
    yield Term("idle while the host waited", f"{step.waits:.1f} us", anchored)
    yield Term("idle with work queued", f"{step.dependent:.1f} us", anchored)
    for name, figure in (
        ("gap between graph nodes", profile.node_gap_us),
        ("launch of one graph", profile.graph_launch_us),
    ):
        yield Term(name, f"{figure.mid:g} ({figure.low:g} to {figure.high:g}) us", figure.source)


def _notes(trace: Trace, found: Lanes, wall_us: float) -> Iterator[str]:
    busy_us = found.busy_ns / 1e3 / max(1, len(trace.steps))
    if busy_us > wall_us:
        yield (
            f"The trace keeps the device busy for {busy_us:.0f} us a step, longer than the wall "
            f"time of {wall_us:.0f} us: the two are not from the same step."
        )
    explained = 1 - found.unattributed_ns / found.span_ns
    if explained < _ENOUGH_EXPLAINED:
        yield f"Only {explained:.0%} of the trace could be explained: launches are missing from it."
    graphs = sum(call.name in GRAPH_LAUNCHES for call in trace.calls)
    if graphs:
        yield f"The trace launches CUDA graphs already, {graphs} times."
    counts = sorted(set(_events_per_step(trace)))
    if len(counts) > 1:
        yield f"The steps of the trace launched different numbers of kernels: {counts}."


def _events_per_step(trace: Trace) -> list[int]:
    """Device events by the step in which they were launched."""
    per_call = Counter(event.correlation for event in trace.device_events)
    counts = [0] * len(trace.steps)
    position = 0
    for call in trace.calls:  # both ordered by start
        while position < len(counts) and trace.steps[position].end_ns <= call.start_ns:
            position += 1
        if position < len(counts) and trace.steps[position].start_ns <= call.start_ns:
            counts[position] += per_call.get(call.correlation, 0) if call.correlation else 0
    return counts
