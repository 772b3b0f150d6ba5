"""The launches of steps as rows of work, each figure worked out by hand; and the same without the profiler."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.estimate.gpus import load_profile
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.explain.replay import Replay, replay_of
from graphdoctor.trace.steps import find_steps
from tests.support.traces import TraceBuilder

H100 = load_profile("h100")
UPLOAD = "Memcpy HtoD (Pinned -> Device)"


def replayed(builder: TraceBuilder) -> Replay:
    trace = builder.trace()
    found = replay_of(trace, 0, find_steps(trace, 0).counted, gaps(trace, 0), H100)
    assert found is not None
    return found


def work(replay: Replay, *names: str) -> list[list[float]]:
    return [getattr(replay.work, name).tolist() for name in names]


def story(*, lost: bool = False) -> TraceBuilder:
    """Two kernels, a wait, an upload and a graph of three nodes in a step of 200 us; maybe two kernels before,
    of 20 and 15 us with 5 us between them, whose launches are lost."""
    builder = TraceBuilder()
    builder.step(0, 100, 200)
    if lost:
        builder.kernel(9_999, 110, 20)
        builder.kernel(9_998, 135, 15)
    builder.operator("aten::mm", 150, 20)
    builder.launch((155, 5), (170, 10))
    builder.launch((180, 5), (195, 10))
    builder.call("cudaStreamSynchronize", 190, 30)
    builder.copy(builder.call("cudaMemcpyAsync", 240, 5), 250, 5, name=UPLOAD)
    graph = builder.call("cudaGraphLaunch", 260, 8)
    for node in range(3):
        builder.kernel(graph, 270 + node * 10, 6)
    return builder


def test_each_launch_is_a_row_and_what_follows_the_last_one() -> None:
    found = replayed(story())
    assert work(found, "host_us", "launch_us", "busy_us") == [
        [55, 20, 25, 15, 32],  # 30 us of the 60 before the upload are the wait
        [5, 5, 5, 8, 0],
        [10, 10, 5, 18, 0],
    ]
    assert work(found, "gap_us", "inner_us") == [[0, 0, 0, 0, 0], [0, 0, 0, 8, 0]]
    assert work(found, "puts", "waits") == [[1, 1, 1, 1, 0], [0, 1, 0, 0, 0]]
    assert found.nodes.tolist() == [1, 1, 1, 3, 0]
    assert found.in_graph.tolist() == [0, 0, 0, 1, 0]
    assert found.is_upload.tolist() == [0, 0, 1, 0, 0]
    assert found.opens.tolist() == [1, 0, 0, 0, 0]
    assert found.events.tolist() == [2, 1, 2, 1, 0]
    assert found.steps == 1
    assert (found.actual_us, found.device_end_us) == (200, 196)


def test_from_launch_to_start_and_from_end_to_going_on_it_takes_the_usual_time() -> None:
    found = replayed(story()).work
    assert found.sync_us == 15  # the kernel ended at 205, the wait at 220
    assert found.latency_us == 10  # of 10, 10 and 15 us
    alone = TraceBuilder()
    alone.launch((100, 5), (110, 10))
    assert replayed(alone).work.latency_us == H100.launch_latency_us.mid
    assert replayed(alone).work.sync_us == H100.sync_us.mid


def test_work_whose_launches_were_lost_is_one_row_before_the_first() -> None:
    """It was launched when it began at the latest; what is left of the host's time is the launch."""
    found = replayed(story(lost=True))
    assert work(found, "host_us", "launch_us", "busy_us") == [
        [10, 0, 20, 25, 15, 32],
        [45, 5, 5, 5, 8, 0],
        [35, 10, 10, 5, 18, 0],
    ]
    assert work(found, "gap_us", "inner_us") == [[0] * 6, [5, 0, 0, 0, 8, 0]]
    assert work(found, "puts", "waits") == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0]]
    assert found.nodes.tolist() == [2, 1, 1, 1, 3, 0]
    assert found.opens.tolist() == [1, 0, 0, 0, 0, 0]
    assert found.events.tolist() == [1, 2, 1, 2, 1, 0]
    assert found.fixed_us.tolist() == found.elsewhere_us.tolist() == [0] * 6


def test_the_gap_before_the_first_known_launch_is_none_of_the_lost_work() -> None:
    builder = TraceBuilder()
    builder.step(0, 100, 200)
    builder.kernel(9_999, 110, 20)
    builder.kernel(9_998, 135, 30)
    builder.launch((155, 5), (170, 10))  # queued 5 us before the device was free for it
    assert work(replayed(builder), "gap_us", "inner_us", "busy_us") == [
        [0, 5, 0], [5, 0, 0], [50, 10, 0],
    ]  # fmt: skip


def test_without_its_edges_a_step_is_from_its_first_launch_to_the_device_s_end() -> None:
    found = replayed(story())
    inner = found.without_edges()
    assert inner.work.host_us.tolist() == [0, 20, 25, 15, 0]
    assert inner.actual_us == inner.device_end_us == 196 - 55
    assert inner.work.waits.tolist() == [0, 1, 0, 0, 0]
    assert found.work.host_us.tolist()[0] == 55  # what was given stays
    ending = story()
    ending.call("cudaStreamSynchronize", 270, 29)
    assert replayed(ending).work.waits.tolist() == [0, 1, 0, 1, 0]
    assert replayed(ending).without_edges().work.waits.tolist() == [0, 1, 0, 0, 0]


def test_queued_work_behind_a_gap_keeps_it() -> None:
    builder = TraceBuilder()
    builder.launch((100, 5), (110, 20))
    builder.launch((110, 5), (133, 5))
    builder.kernel(
        None, 140, 4
    )  # without a launch: with the one before it, as the last that is known
    found = replayed(builder)
    assert work(found, "gap_us", "busy_us") == [[0, 5, 0], [20, 9, 0]]
    assert found.nodes.tolist() == [1, 2, 0]


def test_steps_go_on_one_after_the_other() -> None:
    builder = TraceBuilder()
    for number in range(3):
        begin = 1000.0 + 100 * number
        builder.step(number, begin, 100)
        builder.launch((begin + 20, 5), (begin + 30, 10))
        builder.launch((begin + 40, 5), (begin + 50, 10))
    found = replayed(builder)
    assert found.step.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert found.opens.tolist() == [1, 0, 1, 0, 1, 0, 0]
    assert found.work.host_us.tolist() == [20, 15, 75, 15, 75, 15, 55]
    assert found.steps == 3


def test_without_the_profiler_each_event_costs_less_and_a_long_call_as_much() -> None:
    """Twenty ordinary launches, and one that comes after a second of something without events."""
    builder = TraceBuilder()
    start = 1000.0
    builder.step(0, start - 10, 2_000_000)
    for number in range(21):
        if number == 10:
            start += 1_000_000
        builder.operator("aten::mm", start, 12)
        builder.launch((start + 2, 8), (start + 12, 5))
        start += 20
    found = replayed(builder)
    same = found.without_profiler(1.0)
    assert np.array_equal(same.host_us, found.work.host_us)
    assert np.array_equal(same.launch_us, found.work.launch_us)
    half = found.without_profiler(2.0)
    spared = found.work.host_us + found.work.launch_us - half.host_us - half.launch_us
    # 20 us a launch of two events, of which the profiler made a half.
    assert spared[1:10] == pytest.approx([10] * 9, rel=0.02)
    assert spared[10] == pytest.approx(10, rel=0.02)
    assert half.host_us[10] > 999_000


def test_nothing_is_faster_than_half_of_what_all_of_it_would_be_without_the_profiler() -> None:
    """Many events in little time: less than the usual cost of one is there to be spared."""
    builder = TraceBuilder()
    builder.step(0, 990, 3000)
    for number in range(11):
        start = 1000.0 + number * 100
        builder.launch((start, 60), (start + 65, 10))
    for index in range(40):
        builder.operator("aten::view", 1160.5 + index * 0.5, 0.5)
    found = replayed(builder)
    left = found.without_profiler(4.0)
    assert left.launch_us[2] == pytest.approx(found.work.launch_us[2] * 0.125)
