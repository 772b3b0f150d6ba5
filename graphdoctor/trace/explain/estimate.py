"""Estimate a step from its trace and the wall time that it takes without the profiler."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.ranges import around
from graphdoctor.estimate.two_lanes import run
from graphdoctor.trace import Lanes, Trace
from graphdoctor.trace.explain.gaps import busiest_device, gaps, lanes_in
from graphdoctor.trace.explain.graphed_steps import factors_of, predict_from_trace
from graphdoctor.trace.explain.replay import Replay, replay_of
from graphdoctor.trace.steps import Steps, find_steps
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Estimate

_ENOUGH_EXPLAINED = 0.9


def estimate_from_trace(trace: Trace, wall_us: float, profile: DeviceProfile) -> Estimate:
    """Launch-bound share and graph time of one step that really ran.

    Busy time comes from the trace, because the profiler slows the host and not the device;
    `wall_us` is the time of one step *without* a profiler, > 0. A graph removes idle time before
    launches and keeps the rest: waits for results, and queued work that waited for other streams.
    Raises UsageError when the trace has no device events.
    """
    if not len(trace.device_events):
        raise UsageError("The trace has no kernels: profile the step on a GPU, with CUDA activity.")
    device = busiest_device(trace)
    steps = find_steps(trace, device)
    idle = gaps(trace, device)
    times = lanes_in(trace, device, steps.windows, idle)
    predicted = predict_from_trace(trace, device, steps, idle, profile=profile, wall_us=wall_us)
    found = None if isinstance(predicted, str) else predicted
    busy = times.busy_ns / 1e3 / len(steps.counted)
    names = trace.about.device_names
    replay = replay_of(trace, device, steps.counted, idle, profile)
    return Estimate(
        gpu=names[0] if names else profile.title,
        basis="measured",
        launches=round(times.launches / len(steps.counted)),
        host_us=(Range(0.0, 0.0, wall_us) if replay is None else _host_us(trace, replay, wall_us)),
        device_busy_us=Range.exact(busy),
        eager_us=Range.exact(wall_us),
        graph_us=found.graph_us if found is not None else Range(busy, wall_us, wall_us),
        # Without launches in the trace, any part of the idle time may be launch-bound.
        launch_bound_share=(
            found.launch_bound_share
            if found is not None
            else Range(0.0, 0.0, max(0.0, 1 - busy / wall_us))
        ),
        speedup=found.speedup
        if found is not None
        else Range(1.0, 1.0, wall_us / (busy or wall_us)),
        terms=found.terms if found is not None else (),
        notes=(
            *((predicted,) if isinstance(predicted, str) else ()),
            *_notes(steps, times, wall_us, busy),
        ),
    )


def _host_us(trace: Trace, replay: Replay, wall_us: float) -> Range:
    """The host's work in one step, with the profiler's slowness taken out."""
    factors = factors_of(trace.about, replay, wall_us), factors_of(trace.about, replay, None)
    values = [
        min(wall_us, run(replay.without_profiler(factor)).host_us / replay.steps)
        for factor in (factors[0][1], *factors[1])
    ]
    return around(values)


def _notes(steps: Steps, times: Lanes, wall_us: float, busy_us: float) -> Iterator[str]:
    if busy_us > wall_us:
        yield (
            f"The trace keeps the device busy for {busy_us:.0f} us a step, longer than the wall "
            f"time of {wall_us:.0f} us: the two are not from the same step."
        )
    explained = 1 - times.unattributed_ns / (times.span_ns or 1)
    if explained < _ENOUGH_EXPLAINED:
        yield f"Only {explained:.0%} of the trace could be explained: launches are missing from it."
    counts = sorted({step.kernels for step in steps.all})
    if len(counts) > 1:
        yield f"The steps of the trace launched different numbers of kernels: {counts}."
