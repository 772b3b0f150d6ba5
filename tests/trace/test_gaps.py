"""Where a gap of the device comes from: how long a launch may be on its way, and the longest gaps with their causes."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace.explain.gap_causes import activity, longest_gaps, longest_places
from graphdoctor.trace.explain.gaps import Gaps, gaps
from graphdoctor.trace.explain.graph_use import in_graphs
from graphdoctor.values.locations import Location
from tests.support.traces import TraceBuilder


def launched(*ways: float, call: str = "cudaLaunchKernel") -> TraceBuilder:
    """A kernel each ms, which begins so many us after its launch of 5 us is done; the device idles before."""
    builder = TraceBuilder()
    builder.launch((0, 5), (8, 10))
    for place, way in enumerate(ways):
        start = 1000.0 * (place + 1)
        builder.kernel(builder.call(call, start, 5), start + 5 + way, 10)
    return builder


def on_the_way_us(builder: TraceBuilder) -> list[float]:
    """Of each gap what launching took, of the time after the launch began."""
    return ((gaps(builder.trace(), 0).launch_path_ns) / 1e3 - 5).tolist()


@pytest.mark.parametrize(
    ("ways", "counted"),
    [
        ((3, 3, 19), (3, 3, 19)),
        ((3, 3, 20), (3, 3, 20)),
        ((3, 3, 21), (3, 3, 20)),  # four usual ones are less than the 20 us that any may take
        ((10, 10, 40), (10, 10, 40)),
        ((10, 10, 41), (10, 10, 40)),  # four usual ones
        ((60, 60, 120), (60, 60, 100)),  # and never more than 100 us
    ],
)
def test_what_begins_later_than_four_usual_launches_waited_for_something_else(
    ways: tuple[float, ...], counted: tuple[float, ...]
) -> None:
    builder = launched(*ways)
    assert on_the_way_us(builder) == list(counted)
    found = gaps(builder.trace(), 0)
    late = [way - seen for way, seen in zip(ways, counted, strict=True)]
    assert (found.device_gap_ns / 1e3).tolist() == late


def test_a_graph_may_be_on_its_way_five_times_as_long() -> None:
    builder = launched(3, 3, 3)
    for start, way in ((5000.0, 100), (6000.0, 101)):
        builder.kernel(builder.call("cudaGraphLaunch", start, 5), start + 5 + way, 10)
    assert on_the_way_us(builder)[-2:] == [100, 100]


def test_an_event_that_begins_where_the_one_before_ends_leaves_no_gap() -> None:
    builder = TraceBuilder()
    for start, length in ((10, 10), (20, 5), (25.001, 5)):
        builder.launch((start - 8, 2), (start, length))
    found = gaps(builder.trace(), 0)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([25_000], [25_001])


def test_a_launch_that_is_done_when_the_gap_begins_was_queued() -> None:
    for end, queued in ((18.0, True), (18.001, False)):
        builder = TraceBuilder()
        builder.launch((0, 5), (8, 10))
        builder.launch((10, end - 10), (30, 5))
        found = gaps(builder.trace(), 0)
        assert found.device_gap_ns.tolist() == ([12_000] if queued else [0])


def lost(*correlations: int) -> list[bool]:
    """Whether each of these kernels without a call is one of a graph."""
    builder = TraceBuilder()
    builder.launch((0, 5), (8, 10))
    for place, correlation in enumerate(correlations):
        builder.kernel(correlation, 100.0 + place * 10, 5)
    trace = builder.trace()
    found: list[bool] = in_graphs(trace, np.arange(len(trace.device_events))).tolist()
    assert found[0] is False
    return found[1:]


def test_kernels_that_share_a_number_are_of_a_graph_whose_launch_was_lost() -> None:
    assert lost(77, 78) == [False, False]
    assert lost(77, 78, 77) == [True, False, True]
    assert lost(-1, -1) == [False, False]


def story() -> tuple[TraceBuilder, Gaps]:
    """Gaps of 12, 40 and 22 us; before the second the host waits in a line of the user's."""
    builder = TraceBuilder()
    builder.launch((0, 5), (8, 10))
    builder.launch((25, 3), (30, 10))
    builder.frame("train.py(7): step", 31, 60)
    builder.operator("aten::item", 32, 20)
    builder.call("cudaStreamSynchronize", 33, 18)
    builder.operator("aten::mm", 60, 20)
    builder.launch((70, 5), (80, 10))
    builder.launch((105, 3), (112, 10))
    return builder, gaps(builder.trace(), 0)


def test_the_longest_gaps_of_the_windows_come_first_and_only_so_many() -> None:
    _, found = story()
    whole = [(0, 200_000)]
    assert longest_places(found, whole, 9).tolist() == [1, 2, 0]
    assert longest_places(found, whole, 2).tolist() == [1, 2]
    # A gap is of the window in which it ends, its last moment included.
    assert longest_places(found, [(30_000, 112_000)], 9).tolist() == [1, 2]
    assert longest_places(found, [(29_999, 111_999)], 9).tolist() == [1, 0]


def test_a_gap_says_when_it_was_who_ended_it_and_where_the_host_waited() -> None:
    builder, found = story()
    trace, windows = builder.trace(), [(8_000, 200_000)]
    found = gaps(trace, 0)
    first, second, third = longest_gaps(trace, found, windows, 9, activity(trace, found, windows))
    assert (first.at_ns, first.length_ns, first.sync_wait_ns) == (32_000, 40_000, 11_000)
    assert (first.kernel, first.launch, first.operator) == ("k", "cudaLaunchKernel", "aten::mm")
    assert (first.sync, first.location) == (
        "cudaStreamSynchronize", Location("train.py", 7, "step"),
    )  # fmt: skip
    assert (second.at_ns, second.length_ns, second.sync) == (82_000, 22_000, "")
    assert (third.operator, third.location) == ("", None)
    assert first.host_ns + first.launch_path_ns + first.sync_wait_ns == 40_000
