"""Damaged traces are explained or refused in one sentence; the long run is benchmarks/truth/fuzz_trace.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace import parse_trace
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.values.errors import UsageError
from tests.support.traces import launch_bound

FILE = Path("trace.json")
WHOLE = json.dumps(launch_bound(12, steps=3).document()).encode()
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.text(max_size=5), st.floats(allow_nan=False)),
        st.integers(-(2**70), 2**70),
        st.sampled_from(("kernel", "cuda_runtime", "cudaGraphLaunch", "ProfilerStep#1", "X")),
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def explain(content: bytes) -> None:
    """Raises anything but UsageError, and fails where a report does not add up."""
    try:
        report = explain_trace(parse_trace(content, name="trace.json"), FILE)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    idle = report.launch_bound_ns + report.sync_wait_ns + report.device_gap_ns
    assert report.device_busy_ns + idle + report.unattributed_ns == report.span_ns
    assert all(char.isprintable() or char == "\n" for char in trace_page.render(report, Look()))
    json.loads(written(report))


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 400), st.binary(max_size=4))
def test_any_bytes_in_the_place_of_others(place: int, length: int, other: bytes) -> None:
    explain(WHOLE[:place] + other + WHOLE[place + length :])


@given(
    st.integers(0, 90),
    st.sampled_from(("ph", "cat", "name", "ts", "dur", "pid", "tid", "args")),
    st.sampled_from(("", "correlation", "device", "stream", "bytes", "graph id")),
    ANYTHING,
)
def test_any_value_in_any_field(place: int, key: str, argument: str, value: Any) -> None:
    document = launch_bound(12, steps=3).document()
    event = document["traceEvents"][place]
    if argument and isinstance(event.get("args"), dict):
        event["args"][argument] = value
    else:
        event[key] = value
    explain(json.dumps(document).encode())
