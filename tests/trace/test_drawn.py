"""The beginning of a trace as a page draws it: in order, apart, and no more than can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.trace import read_trace
from graphdoctor.trace.explain import trace_report
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.values.lanes import LaneEvent, TraceLanes
from graphdoctor.values.trace import TraceReport
from tests.support.trace_stories import REAL
from tests.support.traces import TraceBuilder


def explained(path: Path) -> tuple[TraceReport, TraceLanes]:
    report = explain_trace(read_trace(path), path)
    assert report.drawn is not None
    return report, report.drawn


@pytest.fixture(scope="module")
def real() -> tuple[TraceReport, TraceLanes]:
    return explained(REAL)


def ends(events: tuple[LaneEvent, ...]) -> list[tuple[int, int]]:
    return [(event.at_ns, event.at_ns + event.length_ns) for event in events]


def test_stretches_of_a_lane_follow_each_other(real: tuple[TraceReport, TraceLanes]) -> None:
    lanes = real[1]
    for events in (lanes.host, lanes.waits, lanes.device, lanes.steps):
        edges = [edge for pair in ends(events) for edge in pair]
        assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= lanes.span_ns
        assert all(0 <= event.name < len(lanes.names) for event in events)


def test_busy_time_and_gaps_are_those_of_the_report(real: tuple[TraceReport, TraceLanes]) -> None:
    report, lanes = real
    assert lanes.is_all and len(lanes.steps) == report.steps_counted == 1
    assert sum(event.length_ns for event in lanes.device) == report.device_busy_ns
    for cause in ("sync_wait_ns", "host_ns", "launch_path_ns", "device_gap_ns", "unattributed_ns"):
        assert sum(getattr(gap, cause) for gap in lanes.gaps) == getattr(report, cause)


def test_host_shows_the_outermost_of_the_thread_that_launches(
    real: tuple[TraceReport, TraceLanes],
) -> None:
    lanes = real[1]
    names = {lanes.names[event.name] for event in lanes.host}
    assert "aten::linear" in names and "aten::addmm" not in names


def test_only_as_many_steps_are_drawn_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TraceBuilder()
    for step in range(6):
        for number in range(10):
            at = 1000.0 + step * 1000 + number * 50
            builder.launch((at, 5), (at + 8, 20))
        builder.step(step, 1000.0 + step * 1000, 900)
    path = builder.write(tmp_path / "t.json")
    whole = explained(path)[1]
    assert whole.is_all and len(whole.steps) >= 5
    monkeypatch.setattr(trace_report, "MOST_EVENTS", 25)
    part = explained(path)[1]
    assert not part.is_all and len(part.device) == 20 and len(part.steps) == 2
    monkeypatch.setattr(trace_report, "MOST_EVENTS", 4)
    less = explained(path)[1]
    assert not less.is_all and len(less.device) == 4 and len(less.gaps) <= 4
