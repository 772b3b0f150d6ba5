"""Traces of other writers, in any order and shape: read in time and memory that grow with their size."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.trace import parse_trace, read_trace
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.trace.read import blocks
from graphdoctor.trace.read.split import structure
from graphdoctor.values.errors import UsageError
from tests.support.traces import TraceBuilder, launch_bound
from tests.trace.test_read import columns

METADATA = {"name": "process_name", "ph": "M", "ts": 0, "pid": 1, "args": {"name": "python"}}


def events(count: int = 200) -> list[dict[str, Any]]:
    return launch_bound(count).events


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(
    "document",
    [
        {"traceEvents": [METADATA, *events()]},
        {"traceEvents": [dict(sorted(event.items())) for event in events()]},
        {"traceEvents": [{**event, "list": [{"a": 1}, {"b": [{"c": "},{"}]}]} for event in events()]},
        {"traceEvents": [{**event, "text": "},{ \\" * 200} for event in events()]},
        {"traceEvents": events(), "other": [{"x": 1}] * 300, "host_name": "h"},
        {"other": [{"x": 1}] * 300, "deviceProperties": [], "traceEvents": events()},
    ],
    ids=["metadata first", "sorted keys", "lists inside", "long strings", "more after", "more before"],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 3])
def test_any_order_of_keys_and_events_reads_the_same(
    tmp_path: Path, document: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document, indent=indent))
    found = read_trace(path)
    assert columns(found) == columns(parse_trace(json.dumps({"traceEvents": events()}).encode()))
    assert found.warnings == ()
    assert not found.is_cut


def test_a_trailer_keeps_what_it_says_of_the_run(tmp_path: Path, _small_blocks: None) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events(), "x": [{"y": 1}] * 99, "host_name": "h9"}))
    assert read_trace(path).about.worker == "h9"


def cpu_seconds(path: Path) -> float:
    began = time.process_time()
    with contextlib.suppress(UsageError):
        read_trace(path)
    return time.process_time() - began


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [' + "{}," * 300_000 + "{}]}",
        '{"traceEvents": [' + "1," * 300_000 + "1]}",
        '{"traceEvents": [{"name": "' + "x" * 1_000_000 + '"}]}',
        '{"traceEvents": [{"name": "' + "},{" * 300_000 + '"}]}',
        '{"traceEvents": [' + " " * 1_000_000 + "{}]}",
        '{"traceEvents": [{"args": ' + "[" * 450_000 + "]" * 450_000 + "}]}",
        '{"traceEvents": [' + '{"args":' * 100_000 + "1" + "}" * 100_000 + "]}",
        " " * 1_000_000,
        "[" * 750_000,
    ],
    ids=["no keys", "numbers", "long name", "braces in a name", "space", "lists", "nested", "nothing", "open"],
)  # fmt: skip
def test_a_megabyte_of_anything_takes_seconds_and_not_gigabytes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    del text
    tracemalloc.start()
    try:
        took = cpu_seconds(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 15  # tracing allocations makes it some ten times slower
    assert peak < 200e6


def test_spans_that_nest_as_deep_as_one_likes_take_no_longer() -> None:
    """One pass for each level would be ten thousand passes."""
    builder = launch_bound(5)
    for depth in range(10_000):
        builder.frame("a.py(1): f", depth / 1000, 9_000.0 - depth / 500)
    trace = builder.trace()
    began = time.process_time()
    explain_trace(trace, Path("t.json"))
    assert time.process_time() - began < 3


def test_over_a_limit_of_memory_reading_ends_with_a_sentence(tmp_path: Path) -> None:
    path = launch_bound(6_000).write(tmp_path / "t.json")
    assert len(read_trace(path, most_bytes=50 << 20).device_events) == 6_000
    with pytest.raises(UsageError, match=r"more than 1 MB .* --max-memory"):
        read_trace(path, most_bytes=1 << 20)


def test_a_flipped_bit_in_a_packed_file_costs_what_follows_it(tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": events(3_000)}).encode()
    packed = bytearray(gzip.compress(content))
    packed[len(packed) * 3 // 4] ^= 0x10
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    found = read_trace(path)
    assert len(found.device_events) > 1_500
    assert found.is_cut
    assert any("damaged" in warning for warning in found.warnings)


def test_a_file_cut_before_its_kernels_is_said_to_be_cut(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for place in range(50):
        builder.operator("aten::mul", place * 10, 8)
    whole = builder.write(tmp_path / "t.json").read_bytes()
    for name, content in (("cut.json", whole[:-90]), ("cut.json.gz", gzip.compress(whole)[:-20])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="cut short: its kernels may stand in what is missing"):
            explain_trace(read_trace(tmp_path / name), tmp_path / name)


def test_a_profile_of_another_tool_says_how_to_record(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b'{"rocprofiler-sdk-tool": [{"metadata": {}, "buffer_records": {}}]}')
    with pytest.raises(UsageError, match=r"rocprofv3.* record the step with torch\.profiler"):
        read_trace(path)


def test_steps_of_2021_are_steps_and_no_operators() -> None:
    builder = launch_bound(20, steps=3)
    for event in builder.events:
        event["cat"] = {
            "user_annotation": "Operator",
            "cpu_op": "Operator",
            "cuda_runtime": "Runtime",
            "kernel": "Kernel",
        }[event["cat"]]
    found = explain_trace(builder.trace(), Path("t.json"))
    assert (found.step_basis, found.steps_counted) == ("annotations", 3)
    assert not any("ProfilerStep" in cost.name for cost in found.operators)
    assert len(builder.trace().operators) == 60


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = gzip.compress(json.dumps({"traceEvents": events()}).encode())
    writer = threading.Thread(target=lambda: pipe.write_bytes(content))
    writer.start()
    assert len(read_trace(pipe).device_events) == 200
    writer.join()


@given(st.recursive(
    st.integers() | st.text('ab{}[],"\\', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('{}"\\', max_size=3), inner, max_size=3),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict)), st.integers(0, 60))  # fmt: skip
def test_the_structure_of_a_text_is_found_by_brackets_and_quotes_alone(
    value: dict[str, Any], cut: int
) -> None:
    text = json.dumps(value).encode()
    assert structure(text + b", {").last_event == len(text)
    assert structure(text + b"], 3").list_end == len(text)
    part = text[: min(cut, len(text) - 1)]
    assert structure(part) == (0, None)
