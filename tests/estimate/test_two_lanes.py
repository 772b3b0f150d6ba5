"""The two-lane simulation against one that goes launch by launch, and what-ifs on small traces."""

from __future__ import annotations

from dataclasses import fields, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.estimate import two_lanes
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.two_lanes import Positions, Work, run
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.explain.graphed_steps import with_graphs, without_waits
from graphdoctor.trace.explain.replay import Replay, replay_of
from graphdoctor.trace.steps import find_steps
from tests.support.traces import TraceBuilder, launch_bound

H100 = load_profile("h100")
LATENCY, SYNC = 3.0, 5.0


@st.composite
def works(draw: st.DrawFn) -> Work:
    count = draw(st.integers(0, 30))

    def column(most: int) -> np.ndarray:
        values = draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
        return np.array(values, np.float64)

    def mask() -> np.ndarray:
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return np.array(values, np.bool_)

    return Work(
        column(9), column(4), column(2), column(20), column(3), mask(), mask(), LATENCY, SYNC
    )


def one_by_one(work: Work) -> tuple[float, float]:
    """Span and time that the device waited for launches."""
    host = device = waiting = owed = 0.0
    for row in range(len(work)):
        host += work.host_us[row]
        if work.puts[row]:
            ready = host + LATENCY
            earliest = device + work.gap_us[row] if device else 0.0
            if ready > earliest:
                waiting += max(0.0, ready - earliest - owed)
                owed = 0.0
            device = max(ready, earliest) + work.busy_us[row] + work.inner_us[row]
        host += work.launch_us[row]
        if work.waits[row]:
            host = max(host, device) + SYNC
            owed += SYNC
    return max(host, device), waiting + max(0.0, host - device - owed)


@pytest.mark.parametrize("few", [0, 64])  # rows: all stretches at once, and none
@given(work=works())
def test_stretches_computed_at_once_give_what_single_launches_give(work: Work, few: int) -> None:
    with mock.patch.object(two_lanes, "_FEW", few):
        found = run(work)
    span, waiting = one_by_one(work)
    assert found.span_us == pytest.approx(span)
    assert found.waiting_us == pytest.approx(waiting)
    assert found.busy_us == pytest.approx(float(work.busy_us[work.puts].sum()))


@given(works())
def test_rows_lie_in_the_same_places_however_they_are_computed(work: Work) -> None:
    placed = []
    for few in (0, 64):
        placed.append(Positions.empty(len(work)))
        with mock.patch.object(two_lanes, "_FEW", few):
            run(work, placed[-1])
    for one, other in zip(*map(columns_of, placed), strict=True):
        assert one.tolist() == pytest.approx(other.tolist())


def columns_of(positions: Positions) -> list[np.ndarray]:
    return [getattr(positions, field.name) for field in fields(positions)]


def replayed(builder: TraceBuilder) -> Replay:
    trace = builder.trace()
    steps = find_steps(trace, 0).counted
    found = replay_of(trace, 0, steps, gaps(trace, 0), H100)
    assert found is not None
    return found


def test_a_trace_replayed_takes_as_long_as_it_took() -> None:
    found = replayed(launch_bound(40, steps=3))
    assert run(found.work).span_us == pytest.approx(found.actual_us, rel=0.01)


def test_launches_of_the_backward_thread_are_one_host_with_the_main_thread() -> None:
    builder = TraceBuilder()
    for place in range(40):
        thread = 1 if place < 20 else 2
        start = place * 10.0
        builder.kernel(builder.call("cudaLaunchKernel", start, 3, thread=thread), start + 5, 2)
    # The main thread waits for the other one's work, and the other one goes on.
    builder.call("cudaDeviceSynchronize", 200, 205, thread=1)
    found = replayed(builder)
    assert run(found.work).span_us == pytest.approx(found.actual_us, rel=0.05)
    assert found.work.host_us[21:39] == pytest.approx(7.0)


def test_uploads_and_graphs_that_are_there_stay_and_cut_regions() -> None:
    builder = launch_bound(60)
    upload = builder.call("cudaMemcpyAsync", 1203.5, 2)
    builder.copy(upload, 1210, 4, name="Memcpy HtoD (Pinned -> Device)")
    graph = builder.call("cudaGraphLaunch", 1403.5, 2)
    for node in range(3):
        builder.kernel(graph, 1410 + node * 1.5, 1)
    replay = replayed(builder)
    found = with_graphs(replay, replay.without_profiler(1.0), H100, "mid")
    assert (found.regions, found.captured) == (3, 60)
    assert found.upload_us == pytest.approx(4.0, abs=1.5)
    assert len(found.work) == 3 + 2 + 1  # graphs, upload and old graph, what follows


def test_a_long_pause_of_the_host_in_one_step_stays_in_every_case() -> None:
    builder = launch_bound(60)
    for event in builder.events:
        if event["ts"] > 1300:
            event["ts"] += 5000
    builder.events[0]["dur"] += 5000
    found = replayed(builder)
    work = found.without_profiler(1.0)
    kept = with_graphs(found, work, H100, "mid")
    optimistic = with_graphs(found, work, H100, "low")
    assert run(kept.work).span_us > 4900
    assert run(optimistic.work).span_us > 4900


def test_steps_without_waits_are_never_slower() -> None:
    builder = TraceBuilder()
    for place in range(20):
        start = place * 100.0
        builder.launch((start, 2), (start + 5, 60))
        builder.call("cudaStreamSynchronize", start + 3, 70)
    found = replayed(builder)
    assert found.work.waits.sum() == 20
    assert run(without_waits(found.without_profiler(1.0))).span_us < 0.9 * run(found.work).span_us


@given(works(), st.integers(1, 5))
def test_a_host_and_a_device_that_are_as_many_times_slower_make_all_take_so_long(
    work: Work, times: int
) -> None:
    bare = replace(
        work,
        gap_us=np.zeros(len(work)),
        inner_us=np.zeros(len(work)),
        latency_us=0.0,
        sync_us=0.0,
    )
    slower = run(bare.scaled(host=times, device=times))
    assert slower.span_us == pytest.approx(times * run(bare).span_us)


def test_what_is_scaled_is_the_host_s_own_time_or_the_device_s() -> None:
    one = [np.array([value]) for value in (7.0, 2.0, 1.0, 20.0, 3.0)]
    work = Work(*one, np.array([True]), np.array([False]), LATENCY, SYNC)
    host, device = work.scaled(host=3.0, device=1.0), work.scaled(host=1.0, device=3.0)
    assert (host.host_us[0], host.launch_us[0], host.busy_us[0]) == (21.0, 6.0, 20.0)
    assert (device.host_us[0], device.launch_us[0], device.busy_us[0]) == (7.0, 2.0, 60.0)
    for changed in (host, device):
        assert (changed.gap_us[0], changed.inner_us[0]) == (1.0, 3.0)
        assert (changed.latency_us, changed.sync_us) == (LATENCY, SYNC)
