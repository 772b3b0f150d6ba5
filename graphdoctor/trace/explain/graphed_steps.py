"""A trace's steps and an unprofiled wall time -> the step as it is, and as graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from graphdoctor.estimate.gpus import LEVELS, DeviceProfile, Level
from graphdoctor.estimate.ranges import around
from graphdoctor.estimate.two_lanes import Laid, run
from graphdoctor.trace import Lanes, Trace
from graphdoctor.trace.arrays import About
from graphdoctor.trace.explain.gaps import Gaps, gaps
from graphdoctor.trace.explain.lanes import lanes_in
from graphdoctor.trace.explain.replay import Replay, replay_of
from graphdoctor.trace.explain.what_if import Graphed, with_graphs, without_waits
from graphdoctor.trace.steps import Steps
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Term
from graphdoctor.values.trace import TracePrediction

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


class _Cases(Struct, frozen=True):
    """The same steps laid out for each combination of a host's speed and a profile's level."""

    graphed: Graphed  # the likely case
    eager: tuple[Laid, ...]
    graph: tuple[Laid, ...]
    waitless: tuple[Laid, ...]

    def times(self, which: Sequence[Laid], steps: int, shrink: _Shrink) -> list[float]:
        """One step of each case, in us."""
        return [shrink.time(case.span_us / steps) for case in which]


def predict_from_trace(
    trace: Trace,
    device: int,
    steps: Steps,
    *,
    profile: DeviceProfile,
    wall_us: float | None = None,
    found: Gaps | None = None,
) -> TracePrediction | str:
    """What one step takes without a profiler, and with graphs; else a sentence why nobody can tell.

    `wall_us`: one step without a profiler, > 0, from the host's point of view. Without it the time
    from the first launch to the last end is what is predicted.
    """
    found = gaps(trace, device) if found is None else found
    replay = replay_of(trace, device, steps.counted, found, profile)
    if replay is None:
        return "None of the kernels has a launch in the trace, so nothing is predicted."
    replay = replay if wall_us is not None else replay.without_edges()
    error = run(replay.work).span_us / replay.actual_us - 1 if replay.actual_us else 0.0
    if not abs(error) <= _LARGEST_ERROR:
        return _TOO_FAR_OFF.format(error=error)
    factors = factors_of(trace.about, replay, wall_us)
    cases = _laid(replay, profile, factors)
    slack, count = 1 + abs(error), replay.steps
    times = lanes_in(trace, device, steps.windows, found)
    busy = times.busy_ns / 1e3 / count
    shrink = _Shrink.to(wall_us, cases.eager[0].span_us / count, busy)
    eager, graph, waitless = (
        cases.times(which, count, shrink) for which in (cases.eager, cases.graph, cases.waitless)
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


class _Shrink(Struct, frozen=True):
    """Shrinks the idle part of simulated times, where no speed of the host alone gives the wall time."""

    factor: float
    busy_us: float

    @staticmethod
    def to(wall_us: float | None, simulated_us: float, busy_us: float) -> _Shrink:
        idle = simulated_us - busy_us
        if wall_us is None or idle <= 0:
            return _Shrink(1.0, busy_us)
        return _Shrink(max(0.0, wall_us - busy_us) / idle, busy_us)

    def time(self, simulated_us: float) -> float:
        return self.busy_us + max(0.0, simulated_us - self.busy_us) * self.factor


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
    return "found so that the simulated step takes the wall time"


def _bounds(profile: DeviceProfile, name: str) -> str:
    figure = getattr(profile, name)
    return f"{figure.mid:g} ({figure.low:g} to {figure.high:g}) us each; {figure.source}"
