"""How much slower the profiler made the host, and what is promised of graphs within its ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.trace import Trace
from graphdoctor.trace.arrays import About
from graphdoctor.trace.explain.graphed_steps import _range, _shrunk, _speedup, factors_of
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.figures import Range
from graphdoctor.values.trace import TracePrediction
from tests.support.traces import TraceBuilder, launch_bound

EXTRAS = ("with_stack", "record_shapes", "profile_memory")


@pytest.mark.parametrize(("extras", "likely"), [(0, 1.7), (1, 1.85), (2, 2.3), (3, 2.3)], ids=str)
def test_the_more_the_profiler_records_the_slower_it_makes_the_host(
    extras: int, likely: float
) -> None:
    """At least half of what is likely is added, and at most a quarter more."""
    about = About(**dict.fromkeys(EXTRAS[:extras], True))  # type: ignore[arg-type]
    found = factors_of(about, None, None)  # type: ignore[arg-type]
    assert found == pytest.approx((1 + (likely - 1) / 2, likely, 1 + (likely - 1) * 1.25))


def test_of_another_profiler_nobody_knows_whether_it_slows_the_host_at_all() -> None:
    found = factors_of(About(writer="nsight"), None, None)  # type: ignore[arg-type]
    assert found == pytest.approx((1.0, 1.35, 1.7))


@pytest.mark.parametrize(
    ("wall", "simulated", "busy", "time"),
    [
        (None, 100, 40, 100),  # nothing to fit to
        (70, 100, 40, 70),  # the idle 60 us become 30
        (130, 100, 40, 130),
        (40, 100, 40, 40),
        (30, 100, 40, 40),  # never faster than the device's work
        (70, 40, 40, 40),  # nothing idle to shrink
    ],
)
def test_idle_time_is_shrunk_to_the_wall_time(
    wall: float | None, simulated: float, busy: float, time: float
) -> None:
    found = _shrunk([simulated, busy, busy - 5], wall, simulated, busy)
    assert found == pytest.approx([time, busy, busy])


@pytest.mark.parametrize(
    ("eager", "graph", "slack", "busy", "speedup"),
    [
        ([100, 120, 90], [50, 50, 60], 1.0, 10, Range(1.5, 2.0, 2.4)),
        ([100, 120, 90], [50, 50, 60], 1.2, 10, Range(1.25, 2.0, 2.88)),
        ([100, 120, 90], [50, 50, 60], 1.2, 60, Range(1.25, 100 / 60, 2.0)),
        ([100, 100], [0, 0], 1.0, 0, Range(1e5, 1e5, 1e5)),
    ],
)
def test_a_gain_is_that_of_each_case_and_none_is_beyond_the_device_s_work(
    eager: list[float], graph: list[float], slack: float, busy: float, speedup: Range
) -> None:
    found = _speedup(eager, graph, slack, busy)
    assert (found.low, found.mid, found.high) == pytest.approx(
        (speedup.low, speedup.mid, speedup.high)
    )


def test_a_range_is_from_the_least_to_the_most_around_the_likely_case() -> None:
    assert _range([5.0, 3.0, 9.0]) == Range(3.0, 5.0, 9.0)
    assert _range([]) == Range.exact(0.0)


def predicted(builder: TraceBuilder, wall_us: float | None = None) -> TracePrediction:
    report = explain_trace(builder.trace(), Path("run.json"), TraceOptions(wall_us=wall_us))
    assert report.prediction is not None, report.no_prediction
    return report.prediction


def test_a_wall_time_of_the_host_is_met_by_the_speed_of_the_host() -> None:
    profiled = predicted(launch_bound(40, steps=3)).eager_us.high
    found = predicted(launch_bound(40, steps=3), wall_us=profiled / 2)
    assert found.eager_us.mid == pytest.approx(profiled / 2, rel=0.01)
    factor = found.profiler_factor
    assert factor.low == factor.mid == factor.high > 1.5


def test_all_figures_are_of_one_step() -> None:
    few, many = (predicted(launch_bound(40, steps=steps)) for steps in (2, 8))
    for name in ("eager_us", "graph_us", "without_syncs_us"):
        one, other = getattr(few, name), getattr(many, name)
        assert one.mid == pytest.approx(other.mid, rel=0.1), name
    assert (few.regions, few.launches_captured) == (many.regions, many.launches_captured)
    assert few.device_busy_us == many.device_busy_us


def test_a_trace_without_options_is_a_plain_profiler_s() -> None:
    assert not any(getattr(Trace().about, name) for name in EXTRAS)


@pytest.mark.parametrize("streams", [1, 2])
def test_queued_work_that_starts_late_keeps_its_gap_in_a_graph_only_behind_another_stream(
    streams: int,
) -> None:
    """On one stream it is the driver that hands launches over late, which happens once for a graph.

    The wait is autograd's, for a stream that has no work."""
    builder = TraceBuilder()
    for step in range(4):
        begin = 1000.0 + 1000 * step
        builder.step(step, begin, 200)
        calls = [builder.call("cudaLaunchKernel", begin + 10 * place, 4) for place in range(10)]
        builder.call("cudaStreamWaitEvent", begin + 95, 1)
        for place, call in enumerate(calls):
            late = 300 if place >= 5 else 0
            builder.kernel(call, begin + 6 + 10 * place + late, 10, stream=7 + place % streams)
    found = predicted(builder)
    gap = 300 - 10
    assert found.graph_us.high > 100 + gap
    assert (found.graph_us.mid > 100 + gap) == (streams == 2)
