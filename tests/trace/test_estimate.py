"""The measured estimate: busy time from the trace, wall time from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.estimate.gpus import load_profile
from graphdoctor.trace import Trace, read_trace
from graphdoctor.trace.explain.graphed_steps import estimate_from_trace
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range
from tests.support.traces import TraceBuilder, launch_bound

H100 = load_profile("h100")


def test_a_launch_bound_step_gains_and_says_it_was_measured(tmp_path: Path) -> None:
    trace = read_trace(launch_bound(100).write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 600.0, H100)
    assert (found.basis, found.launches, found.gpu) == ("measured", 100, "Test GPU")
    assert found.device_busy_us.mid == 200.0
    assert found.launch_bound_share.mid == pytest.approx(400 / 600)
    assert found.graph_us.low <= found.graph_us.mid <= found.graph_us.high < 600
    assert found.speedup.mid == pytest.approx(600 / found.graph_us.mid)


def test_the_profilers_own_slowness_does_not_count(tmp_path: Path) -> None:
    """The trace is 80 % idle, but without a profiler the step hardly outlasts its kernels."""
    trace = read_trace(launch_bound(100).write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 205.0, H100)
    assert found.launch_bound_share.mid == pytest.approx(5 / 205)
    assert found.speedup.high < 1.1


def test_several_steps_are_averaged_and_must_agree(tmp_path: Path) -> None:
    builder = launch_bound(10, steps=3)
    trace = read_trace(builder.write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 60.0, H100)
    assert (found.launches, found.device_busy_us.mid, found.notes) == (10, 20.0, ())
    builder.launch((1295, 1), (1310, 1))
    uneven = read_trace(builder.write(tmp_path / "u.json"))
    assert any("different numbers" in note for note in estimate_from_trace(uneven, 60, H100).notes)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_host_time_is_that_of_one_step(steps: int, tmp_path: Path) -> None:
    """Ten launches that are 10 us apart: as profiled, and as fast as profilers are known to slow it."""
    trace = read_trace(launch_bound(10, steps=steps).write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 100.0, H100).host_us
    assert (found.mid, found.high) == (100.0, 100.0)
    assert found.low == pytest.approx(52, abs=1.5)
    assert estimate_from_trace(trace, 60.0, H100).host_us.mid == pytest.approx(58.5, abs=1.5)


def test_a_trace_of_another_step_is_told_by_its_busy_time(tmp_path: Path) -> None:
    trace = read_trace(launch_bound(10).write(tmp_path / "t.json"))
    assert estimate_from_trace(trace, 20.0, H100).notes == ()
    (said,) = estimate_from_trace(trace, 19.0, H100).notes
    assert "busy for 20 us a step, longer than the wall time of 19 us" in said


def test_waiting_for_results_is_not_promised_away(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(20):
        start = index * 100.0
        builder.launch((start, 2), (start + 5, 5))
        builder.call("cudaStreamSynchronize", start + 3, 90)
    trace = read_trace(builder.write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 1000.0, H100)
    assert found.launch_bound_share.mid < 0.2
    assert found.graph_us.low > 700


def test_missing_launches_lower_the_confidence(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(10):
        builder.kernel(100 + index, index * 10.0, 2)
    trace = read_trace(builder.write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 60.0, H100)
    assert found.launch_bound_share == Range(0.0, 0.0, pytest.approx(1 - 20 / 60))
    # The device is busy for 20 of 92 us, and nothing says why it is not in the others.
    assert "Only 22% of the trace could be explained: launches are missing from it." in found.notes


@pytest.mark.parametrize(("gap_us", "is_told"), [(10.0, False), (10.1, True)])
def test_a_tenth_of_the_time_may_stay_unexplained(gap_us: float, is_told: bool) -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 80))
    builder.kernel(77, 90 + gap_us, 100 - 80 - gap_us)
    notes = estimate_from_trace(builder.trace(), 200.0, H100).notes
    assert any(note.startswith("Only ") for note in notes) is is_told


def test_a_trace_longer_than_the_wall_time_is_pointed_out(tmp_path: Path) -> None:
    trace = read_trace(launch_bound(100).write(tmp_path / "t.json"))
    found = estimate_from_trace(trace, 100.0, H100)
    assert any("not from the same step" in note for note in found.notes)
    assert found.launch_bound_share.mid == 0


def test_a_trace_without_kernels_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernels"):
        estimate_from_trace(Trace(), 10.0, H100)
