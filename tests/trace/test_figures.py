"""Traces of known events get the same figures as before, to the last digit that matters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphdoctor.values.trace import TraceReport
from tests.support.trace_stories import GOLDEN, figures, reports

WANTED: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TraceReport]:
    return reports(tmp_path_factory.mktemp("stories"))


def test_every_trace_is_explained(found: dict[str, TraceReport]) -> None:
    assert set(found) == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_figures_are_the_golden_ones(name: str, found: dict[str, TraceReport]) -> None:
    """After a wanted change: python -m tests.support.trace_stories, and look at the difference."""
    differing = {}
    now = json.loads(json.dumps(figures(found[name])))
    for part, wanted in WANTED[name].items():
        if rounded(now[part]) != rounded(wanted):
            differing[part] = (now[part], wanted)
    assert differing == {}
    assert set(now) == set(WANTED[name])


def rounded(value: Any) -> Any:
    """Nine digits: sums of floats may differ in the last ones between machines."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


@pytest.mark.parametrize("name", WANTED)
def test_parts_of_the_time_sum_to_the_span(name: str, found: dict[str, TraceReport]) -> None:
    for device in found[name].devices:
        parts = (device.launch_bound_ns, device.sync_wait_ns, device.device_gap_ns)
        assert sum(parts) + device.unattributed_ns == device.idle_ns
        assert device.device_busy_ns + device.idle_ns == device.span_ns
        assert device.host_ns + device.launch_path_ns == device.launch_bound_ns


@pytest.mark.parametrize("name", WANTED)
def test_ranges_hold_their_middle(name: str, found: dict[str, TraceReport]) -> None:
    predicted = found[name].prediction
    assert predicted is not None
    for figure in (predicted.eager_us, predicted.graph_us, predicted.speedup):
        assert figure.low <= figure.mid <= figure.high
    assert predicted.graph_us.low >= predicted.device_busy_us * (1 - 1e-9)


def test_terms_say_where_their_figures_come_from(found: dict[str, TraceReport]) -> None:
    def slowness(name: str) -> str:
        predicted = found[name].prediction
        assert predicted is not None
        sources = {term.name: term.source for term in predicted.terms}
        assert all(sources.values())
        return sources["the profiler slows the host"]

    assert slowness("real").startswith("assumed by what was recorded")
    assert slowness("real, wall time known").startswith("the factor with which the simulated step")
    assert slowness("mixed, wall time known").startswith("the wall time is no shorter")
    assert slowness("story 1, wall time known").startswith("the most that is tried")
