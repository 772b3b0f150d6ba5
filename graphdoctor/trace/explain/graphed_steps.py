"""Predict a step of a trace without the profiler, and with CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from msgspec import Struct

from graphdoctor.estimate.gpus import LEVELS, DeviceProfile, Level
from graphdoctor.estimate.ranges import around
from graphdoctor.estimate.two_lanes import Floats, Laid, Mask, Work, run
from graphdoctor.trace import Lanes, Trace
from graphdoctor.trace.arrays import About, Ints, median
from graphdoctor.trace.explain.gaps import Gaps, busiest_device, gaps, lanes_in
from graphdoctor.trace.explain.replay import Replay, replay_of
from graphdoctor.trace.explain.warm_up import PROFILE_LATER, why_unsteady
from graphdoctor.trace.steps import Steps, find_steps
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Estimate, Term
from graphdoctor.values.trace import TracePrediction

# A pause of the host this long, and this many times a usual one, may be no part of the model.
_PAUSE_US = 1000.0
_PAUSE_FACTOR = 50.0


@dataclass(frozen=True, slots=True, eq=False)
class Graphed:
    """The steps as graphs: the work that is left, and how it came about; figures of all steps."""

    work: Work
    regions: int
    captured: int  # launches that graphs replace
    nodes: int
    node_gaps_us: float
    graph_launch_us: float
    upload_us: float  # copies from the host, which stay: they bring the inputs
    stays_us: float  # host time that no graph removes


def without_waits(work: Work) -> Work:
    """The steps of a host that never waits for the device, but at the very end."""
    return replace(work, waits=np.zeros(len(work), np.bool_))


def with_graphs(replay: Replay, work: Work, profile: DeviceProfile, level: Level) -> Graphed:
    """Every run of launches between two waits, copies from the host or steps becomes one graph.

    `work` is that of the replay without a profiler, `level` which ends of the profile's figures to take. What
    graphs cannot hold stays: uploads, graphs that are there already, waits, the host's first reaction after a
    wait, loading and preparing data, and (but in the optimistic case) other long pauses of the host.
    """
    region = _regions(replay)
    starts = np.flatnonzero(np.diff(region, prepend=-1) != 0)
    eager_us = np.add.reduceat(work.host_us + work.launch_us, starts)
    nodes = np.add.reduceat(replay.nodes, starts)
    fixed_us, each_us = profile.graph_launch_us, profile.graph_node_launch_us
    launch_us = fixed_us.at(level) + nodes * each_us.at(level)
    single = ~(replay.in_graph | replay.is_upload | ~work.puts)[starts]
    pays = single & (eager_us > launch_us)
    rows_pay = np.repeat(pays, np.diff(np.append(starts, len(region))))
    kept_us = np.where(rows_pay, _stays(replay, work, level), work.host_us)
    # A region that pays off is one row; every other row stays separate.
    sizes = np.diff(np.append(starts, len(work)))
    keep = ~np.repeat(pays, sizes)
    keep[starts] = True
    merged = np.flatnonzero(keep)
    gaps_us = np.where(pays, np.maximum(nodes - 1, 0) * profile.node_gap_us.at(level), 0.0)
    new = _collapse(work, merged, kept_us)
    place = np.searchsorted(merged, starts[pays])
    new.launch_us[place] = launch_us[pays]
    new.inner_us[place] += gaps_us[pays]
    # On one stream nothing else holds queued work up but how the driver hands it over (WSL collects launches).
    if level == "high" or not replay.one_stream:
        new.inner_us[place] += _dependent_us(work, profile, starts, pays)
    new.gap_us[place] = np.minimum(new.gap_us[place], profile.queue_gap_us.mid)
    return Graphed(
        work=new,
        regions=int(pays.sum()),
        captured=int(rows_pay.sum()),
        nodes=int(nodes[pays].sum()),
        node_gaps_us=float(gaps_us.sum()),
        graph_launch_us=float(launch_us[pays].sum()),
        upload_us=float(work.busy_us[replay.is_upload].sum()),
        stays_us=float((kept_us + np.where(rows_pay, 0.0, work.launch_us)).sum()),
    )


@lru_cache(maxsize=1)
def _regions(replay: Replay) -> Ints:
    """The same number for the launches that can be one graph, in order."""
    work = replay.work
    alone = replay.in_graph | replay.is_upload | ~work.puts
    after = np.append(True, (work.waits | alone)[:-1])
    begins = after | alone | (np.diff(replay.step, prepend=-1) != 0)
    return np.cumsum(begins)


def _stays(replay: Replay, work: Work, level: Level) -> Floats:
    """Host time before each captured launch that no graph removes."""
    usual = _usual_us(work)
    is_pause = work.host_us > max(_PAUSE_US, _PAUSE_FACTOR * usual)
    always = np.minimum(replay.fixed_us + replay.elsewhere_us, work.host_us)
    stays = always.copy()
    reacts = np.append(False, work.waits[:-1])
    # A single step does not show that a pause recurs, so nothing says that it is part of the model.
    if level != "low" or replay.steps == 1:
        stays = np.where(is_pause, work.host_us, stays)
    if level != "low":
        # Before the first launch of all steps lies what was there before the step.
        stays[0] = work.host_us[0]
    if level == "high":
        stays = np.where(reacts | replay.opens, work.host_us, stays)
    return np.maximum(stays, always)


@lru_cache(maxsize=1)
def _usual_us(work: Work) -> float:
    """The host's usual time before a launch."""
    return median(work.host_us) if len(work) else 0.0


def _collapse(work: Work, starts: Ints, host_us: Floats) -> Work:
    """One row for each run of rows; the last of its waits counts, the first of its gaps."""
    last = np.append(starts[1:], len(work)) - 1
    return replace(
        work,
        host_us=np.add.reduceat(host_us, starts),
        launch_us=work.launch_us[starts].copy(),
        gap_us=work.gap_us[starts].copy(),
        busy_us=np.add.reduceat(work.busy_us, starts),
        inner_us=work.inner_us[starts].copy(),
        puts=work.puts[starts],
        waits=work.waits[last],
    )


def _dependent_us(work: Work, profile: DeviceProfile, starts: Ints, pays: Mask) -> Floats:
    """Gaps in queued work beyond the usual, such as waits for another stream: a graph keeps them."""
    beyond = np.maximum(work.gap_us - profile.queue_gap_us.high, 0.0)
    beyond = np.add.reduceat(beyond, starts)
    inner = np.add.reduceat(work.inner_us, starts) - work.inner_us[starts]
    found: Floats = (beyond + inner)[pays]
    return found


# How much torch.profiler slows the host, by what it records. Measured with torch 2.13 on a
# dispatch-bound model; pytorch/pytorch#82793 shows 1.7 on a GPU.
_FACTOR_PLAIN, _FACTOR_ONE_EXTRA, _FACTOR_ALL = 1.7, 1.85, 2.3
_FACTOR_MOST = 20.0
_LARGEST_ERROR = 0.15  # of the simulation, beyond which it knows nothing of the step
_TOO_FAR_OFF = (
    f"The simulation of these steps is {{error:+.0%}} off their time in the trace, more than {_LARGEST_ERROR:.0%},"
    " so it predicts nothing: they depend on something that the trace does not show (another process, device or"
    " stream, or lost records)."
)

_MOSTLY_COLD = (
    "Cold starts take most of the recorded time, and the simulation of the rest is {error:+.0%} off, so nothing is"
    f" predicted. {PROFILE_LATER}"
)
_WARM_UP = f"{{why}}, so no steady step is in this trace and nothing is predicted. {PROFILE_LATER}"


class _Cases(Struct, frozen=True):
    """The same steps laid out for each combination of a host's speed and a profile's level."""

    graphed: Graphed  # the likely case
    eager: tuple[Laid, ...]
    graph: tuple[Laid, ...]
    waitless: tuple[Laid, ...]


def predict_from_trace(
    trace: Trace,
    device: int,
    steps: Steps,
    found: Gaps,
    *,
    profile: DeviceProfile,
    wall_us: float | None,
) -> TracePrediction | str:
    """What one step takes without a profiler, and with graphs; else a sentence why nobody can tell.

    `wall_us`: one step without a profiler, > 0, from the host's point of view. Without it the time
    from the first launch to the last end is what is predicted.
    """
    replay = replay_of(trace, device, steps.counted, found, profile)
    if replay is None:
        return "None of the kernels has a launch in the trace, so nothing is predicted."
    if why := why_unsteady(trace, device, steps.hosts):
        return _WARM_UP.format(why=why)
    replay = replay if wall_us is not None else replay.without_edges()
    error = run(replay.work).span_us / replay.actual_us - 1 if replay.actual_us else 0.0
    times = lanes_in(trace, device, steps.windows, found)
    if not abs(error) <= _LARGEST_ERROR:
        is_cold = times.warm_up_ns > times.span_ns
        return (_MOSTLY_COLD if is_cold else _TOO_FAR_OFF).format(error=error)
    factors = factors_of(trace.about, replay, wall_us)
    cases = _laid(replay, profile, factors)
    slack, count = 1 + abs(error), replay.steps
    busy = times.busy_ns / 1e3 / count
    likely_us = cases.eager[0].span_us / count
    eager, graph, waitless = (
        _shrunk([case.span_us / count for case in which], wall_us, likely_us, busy)
        for which in (cases.eager, cases.graph, cases.waitless)
    )
    bounds = [max(busy, graph[0]), max(busy, min(graph) / slack), max(graph) * slack]
    return TracePrediction(
        wall_us=wall_us,
        profiler_factor=around((factors[1], *factors)),
        eager_us=around(eager) if wall_us is None else Range.exact(wall_us),
        graph_us=around(bounds),
        speedup=_speedup(eager, graph, slack, busy),
        without_syncs_us=_range(waitless),
        launch_bound_share=_share(cases, times, wall_us, busy),
        device_busy_us=busy,
        regions=cases.graphed.regions / count,
        launches_captured=cases.graphed.captured / count,
        syncs=int(replay.work.waits.sum()) / count,
        simulation_error=error,
        terms=tuple(_terms(replay, cases.graphed, profile, factors, wall_us)),
    )


def factors_of(about: About, replay: Replay, wall_us: float | None) -> tuple[float, float, float]:
    """How many times slower the profiled host was: at least, likely, at most."""
    if wall_us is not None:
        factor = _factor_of(replay, wall_us * replay.steps)
        return factor, factor, factor
    if about.writer == "nsight":  # nobody measured it: not at all, or as much as torch.profiler
        return 1.0, (1 + _FACTOR_PLAIN) / 2, _FACTOR_PLAIN
    extras = sum((about.with_stack, about.record_shapes, about.profile_memory))
    likely = (_FACTOR_PLAIN, _FACTOR_ONE_EXTRA, _FACTOR_ALL, _FACTOR_ALL)[extras]
    return 1 + (likely - 1) / 2, likely, 1 + (likely - 1) * 1.25


def _factor_of(replay: Replay, wall_us: float) -> float:
    """The factor with which the replayed steps take as long as they do without a profiler."""
    low, high = 1.0, _FACTOR_MOST
    if run(replay.without_profiler(low)).span_us <= wall_us:
        return low
    for _ in range(40):
        middle = (low + high) / 2
        if run(replay.without_profiler(middle)).span_us > wall_us:
            low = middle
        else:
            high = middle
    return high


def _laid(replay: Replay, profile: DeviceProfile, factors: tuple[float, float, float]) -> _Cases:
    """The middle case first, then the corners."""
    likely: tuple[float, Level] = (factors[1], "mid")
    # Costs between the ends give times between the ends.
    ends: tuple[Level, Level] = ("low", "high")
    cases = [likely, *((factor, level) for factor in sorted(set(factors)) for level in ends)]
    graphed: dict[tuple[float, Level], Graphed] = {}
    eager, waitless = {}, {}
    for factor in sorted(set(factors)):
        work = replay.without_profiler(factor)
        eager[factor], waitless[factor] = run(work), run(without_waits(work))
        for level in ends if factor != likely[0] else LEVELS:
            graphed[factor, level] = with_graphs(replay, work, profile, level)
    laid = {case: run(one.work) for case, one in graphed.items()}
    return _Cases(
        graphed[likely],
        tuple(eager[factor] for factor, _ in cases),
        tuple(laid[case] for case in cases),
        tuple(waitless[factor] for factor, _ in cases),
    )


def _shrunk(
    times_us: Sequence[float], wall_us: float | None, likely_us: float, busy_us: float
) -> list[float]:
    """Simulated times with less idle time, where no speed of the host alone gives the wall time."""
    idle = likely_us - busy_us
    scale = 1.0 if wall_us is None or idle <= 0 else max(0.0, wall_us - busy_us) / idle
    return [busy_us + max(0.0, each - busy_us) * scale for each in times_us]


def _speedup(eager: Sequence[float], graph: Sequence[float], slack: float, busy_us: float) -> Range:
    """Eager and graph are compared within each case; nothing is faster than the device's work."""
    ratios = [
        before / max(busy_us, after, 1e-3) for before, after in zip(eager, graph, strict=True)
    ]
    most = max(eager) / max(busy_us, 1e-3)
    mid = min(ratios[0], most)
    return Range(min(mid, min(ratios) / slack), mid, max(mid, min(max(ratios) * slack, most)))


def _share(cases: _Cases, times: Lanes, wall_us: float | None, busy_us: float) -> Range:
    """The launch-bound share without a profiler; with a wall time, of what that leaves idle."""
    if wall_us is None:
        return _range([case.waiting_us / case.span_us for case in cases.eager if case.span_us])
    idle = max(0.0, wall_us - busy_us)
    bound, unknown = (
        idle * part / (times.idle_ns or 1) / wall_us
        for part in (times.launch_bound_ns, times.unattributed_ns)
    )
    return Range(bound, bound, bound + unknown)


def _range(values: list[float]) -> Range:
    return around(values) if values else Range.exact(0.0)


def _terms(
    replay: Replay,
    graphed: Graphed,
    profile: DeviceProfile,
    factors: tuple[float, float, float],
    wall_us: float | None,
) -> Iterator[Term]:
    """What makes the graph's time, a step, and the figures behind it."""
    steps = replay.steps
    simulated = "two-lane simulation of the trace's steps"
    busy = float(replay.work.busy_us.sum()) / steps
    yield Term("device busy", f"{busy:.1f} us", "profiler trace, all streams together")
    yield Term("gaps between graph nodes", f"{graphed.node_gaps_us / steps:.1f} us",
               f"{graphed.nodes / steps:.0f} nodes, {_bounds(profile, 'node_gap_us')}")  # fmt: skip
    yield Term("launches of graphs", f"{graphed.graph_launch_us / steps:.1f} us",
               f"{graphed.regions / steps:g} a step, {_bounds(profile, 'graph_launch_us')}")  # fmt: skip
    yield Term("copies of inputs from the host", f"{graphed.upload_us / steps:.1f} us",
               "profiler trace; they stay outside of graphs")  # fmt: skip
    yield Term("host time that stays eager", f"{graphed.stays_us / steps:.1f} us", simulated)
    low, mid, high = factors
    source = "assumed by what was recorded; give the wall time of a step to replace it"
    if wall_us is not None:
        source = _found_or_not(mid)
    bounds = f" ({low:.2g} to {high:.2g})" if low != high else ""
    yield Term("the profiler slows the host", f"{mid:.2f}x{bounds}", source)


def _found_or_not(factor: float) -> str:
    """Where a factor comes from that was sought for a wall time: none may give that time."""
    if factor == 1.0:
        return "the wall time is no shorter than the simulated step; idle time is scaled to it"
    if factor >= _FACTOR_MOST:
        return "the most that is tried, and the simulated step is still longer; idle time is scaled"
    return "the factor with which the simulated step takes the wall time"


def _bounds(profile: DeviceProfile, name: str) -> str:
    figure = getattr(profile, name)
    return f"{figure.mid:g} ({figure.low:g} to {figure.high:g}) us each; {figure.source}"


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
    host_us = Range(0.0, 0.0, wall_us)
    if replay is not None:
        likely = factors_of(trace.about, replay, wall_us)[1]
        host_us = around(
            [
                min(wall_us, run(replay.without_profiler(factor)).host_us / replay.steps)
                for factor in (likely, *factors_of(trace.about, replay, None))
            ]
        )
    return Estimate(
        gpu=names[0] if names else profile.title,
        basis="measured",
        launches=round(times.launches / len(steps.counted)),
        host_us=host_us,
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
