"""What the host did while the device waited: how much of it no launching explains, by kind, line and step."""

from __future__ import annotations

import pytest

from graphdoctor.trace.explain.gap_causes import Doings, activity, doings
from graphdoctor.trace.explain.gaps import gaps, whole_span
from graphdoctor.values.locations import Location
from tests.support.traces import TraceBuilder

IDLE_NS = 1_000_000_000  # a second, so that shares are readable


def did(builder: TraceBuilder, *, steps: int = 1, most: int = 9) -> Doings:
    trace = builder.trace()
    found, windows = gaps(trace, 0), [whole_span(trace, 0)]
    return doings(trace, activity(trace, found, windows), steps, IDLE_NS, most)


def launching(each_us: float, pause_us: float) -> tuple[TraceBuilder, float]:
    """Launches so far apart, of kernels that begin 2 us later and take 2 us; and one behind a pause, in which
    the host is late by `pause_us`. Where the pause begins comes second."""
    builder, start = TraceBuilder(), 1000.0
    for _ in range(20):
        builder.launch((start, 1), (start + 2, 2))
        start += each_us
    pause = start - each_us + 4
    builder.launch((pause + pause_us, 1), (pause + pause_us + 2, 2))
    return builder, pause


@pytest.mark.parametrize(
    ("each_us", "pause_us", "is_long"),
    [
        (10, 1000, False),
        (10, 1001, True),  # longer than a millisecond
        (30, 1500, False),
        (30, 1501, True),  # and than fifty usual times from launch to launch
    ],
)
def test_a_stretch_far_longer_than_usual_is_no_launching(
    each_us: float, pause_us: float, is_long: bool
) -> None:
    builder, pause = launching(each_us, pause_us)
    builder.operator("aten::mm", pause, pause_us)
    assert did(builder).elsewhere_share == (pause_us * 1000 / IDLE_NS if is_long else 0)


def test_known_work_in_a_long_stretch_is_counted_once_and_at_any_length() -> None:
    builder, pause = launching(10, 2000)
    builder.operator("my work", pause, 2000)
    builder.operator("DataLoader.next", pause + 100, 700)
    assert did(builder).elsewhere_share == 2_000_000 / IDLE_NS
    short, pause = launching(10, 300)
    short.operator("DataLoader.next", pause + 100, 100)
    assert did(short).elsewhere_share == 100_000 / IDLE_NS
    known, pause = launching(10, 2000)  # of a kind that is part of launching the model
    known.annotation("Optimizer.step#SGD.step", pause, 2000)
    assert did(known).elsewhere_share == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_kinds_and_causes_are_told_a_step_the_costliest_first(steps: int) -> None:
    builder, pause = launching(10, 2000)
    builder.frame("train.py(7): load", pause, 1200)
    builder.operator("DataLoader.next", pause + 100, 900)
    builder.operator("DataLoader.other", pause + 1000, 100)
    builder.operator("aten::mm", pause + 1500, 300)
    found = did(builder, steps=steps)
    kinds = {kind.kind: (kind.idle_us, kind.share) for kind in found.kinds}
    assert kinds["data-loading"] == (1000 / steps, 1_000_000 / IDLE_NS)
    assert kinds["ordinary"] == (500 / steps, 500_000 / IDLE_NS)
    # 500 us of the pause, and 6 us before each of the 19 launches.
    assert kinds["unrecorded"] == ((500 + 19 * 6) / steps, 614_000 / IDLE_NS)
    assert [kind.kind for kind in found.kinds] == ["data-loading", "unrecorded", "ordinary"]
    first, second, third, fourth = found.causes
    assert (first.kind, first.name, first.idle_us) == (
        "data-loading", "DataLoader.next", 1000 / steps,
    )  # fmt: skip
    assert first.location == Location("train.py", 7, "load")
    assert (second.kind, second.name, second.location) == ("unrecorded", "", None)
    assert (third.name, third.idle_us, third.location) == ("aten::mm", 300 / steps, None)
    assert (fourth.name, fourth.idle_us) == ("load", 200 / steps)
    assert fourth.share == 200_000 / IDLE_NS
    assert did(builder, most=2).causes == did(builder).causes[:2]


@pytest.mark.parametrize(("calls", "explains"), [(2, False), (3, True)])
def test_three_functions_of_another_thread_explain_a_silent_one(calls: int, explains: bool) -> None:
    builder, pause = launching(10, 2000)
    builder.operator("my work", pause, 2000)
    for number in range(calls):
        builder.frame(f"loader.py({number + 1}): fetch", pause + 600 + number * 200, 150, thread=77)
    found = did(builder)
    beside = [cause for cause in found.causes if cause.kind == "another-thread"]
    assert bool(beside) is explains
    if explains:
        (cause,) = beside
        assert (cause.idle_us, cause.location) == (2000, Location("loader.py", 3, "fetch"))
        assert not [cause for cause in found.causes if cause.name == "my work"]


@pytest.mark.parametrize(("silent_us", "explains"), [(999, False), (1000, True)])
def test_a_thread_is_silent_where_nothing_happens_on_it_for_half_of_the_stretch(
    silent_us: float, explains: bool
) -> None:
    builder, pause = launching(10, 2000)
    builder.operator("my work", pause, 2000)
    half = silent_us / 2
    for low, high in ((0, 1000 - half), (1000 + silent_us - half, 2000)):
        builder.operator("aten::mm", pause + low, high - low)
    for number in range(9):
        builder.frame(f"loader.py({number + 1}): fetch", pause + 600 + number * 100, 50, thread=77)
    kinds = {kind.kind for kind in did(builder).kinds}
    assert ("another-thread" in kinds) is explains


@pytest.mark.parametrize(
    "name", ["<built-in function collect>", "time.sleep <built-in function sleep>"]
)
def test_a_thread_that_is_inside_of_c_code_is_not_explained_by_another(name: str) -> None:
    builder, pause = launching(10, 2000)
    builder.frame(name, pause, 2000)
    for number in range(9):
        builder.frame(f"loader.py({number + 1}): fetch", pause + 600 + number * 100, 50, thread=77)
    assert "another-thread" not in {kind.kind for kind in did(builder).kinds}


def test_of_two_launches_the_time_between_them_is_usual() -> None:
    builder = TraceBuilder()
    builder.launch((10, 1), (12, 2))
    builder.launch((3010, 1), (3012, 2))
    assert did(builder).elsewhere_share == 0  # far less than fifty times as long


def test_of_a_single_launch_nothing_is_usual() -> None:
    builder = TraceBuilder()
    builder.kernel(None, 10, 5)
    builder.operator("aten::mm", 20, 1990)
    builder.launch((2015.001, 1), (2020, 2))
    assert did(builder).elsewhere_share == 2_000_001 / IDLE_NS
