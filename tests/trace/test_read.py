"""Reading traces: files as torch.profiler writes them, whole, packed, damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from graphdoctor.trace import (
    Trace,
    lanes,
    operators_of_events,
    parse_trace,
    read_trace,
)
from graphdoctor.trace.read import blocks
from graphdoctor.values.errors import UsageError
from tests.support.traces import TraceBuilder, launch_bound


def columns(trace: Trace) -> list[list[int]]:
    events, calls = trace.device_events, trace.calls
    return [column.tolist() for column in (events.start_ns, events.end_ns, events.correlation)] + [
        column.tolist() for column in (calls.start_ns, calls.end_ns, calls.correlation)
    ]


def test_plain_and_gzip_and_bare_list_read_the_same(tmp_path: Path) -> None:
    builder = launch_bound(3)
    plain = read_trace(builder.write(tmp_path / "t.json"))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(builder.document()).encode()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(builder.events))
    assert columns(read_trace(packed)) == columns(read_trace(bare)) == columns(plain)
    assert plain.about.device_names == ("Test GPU",)
    assert [plain.names[name] for name in plain.annotations.name] == ["ProfilerStep#0"]
    assert (len(plain.device_events), len(plain.calls), len(plain.operators)) == (3, 3, 3)
    assert plain.warnings == ()


def test_times_keep_every_nanosecond(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch((4317453815758.031, 0.003), (4317453815759.127, 2.001))
    trace = read_trace(builder.write(tmp_path / "t.json"))
    assert trace.device_events.start_ns.tolist() == [4317453815759127]
    assert trace.device_events.end_ns.tolist() == [4317453815761128]
    assert (trace.calls.end_ns - trace.calls.start_ns).tolist() == [3]


def test_whole_microseconds_since_1970_stay_exact(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch((1683564901951734, 15), (1683564901951763, 3))
    calls = read_trace(builder.write(tmp_path / "t.json")).calls
    assert calls.start_ns.tolist() == [1683564901951734000]


def test_fractions_of_a_microsecond_since_1970_stay_exact() -> None:
    event = '{"ph":"X","cat":"kernel","name":"k","ts":1683564901951734.123,"dur":0.001,"args":{}}'
    events = parse_trace(f'{{"traceEvents":[{event}]}}'.encode()).device_events
    assert events.start_ns.tolist() == [1683564901951734123]
    assert events.end_ns.tolist() == [1683564901951734124]


def test_times_where_a_thousandfold_float_is_too_coarse_stay_exact() -> None:
    builder = TraceBuilder()
    # 4458676522690.655 us times 1000 lies between two floats that are half a ns apart.
    builder.launch((4458676522690.655, 0.001), (4458676522691.653, 2.001))
    trace = builder.trace()
    assert trace.calls.start_ns.tolist() == [4458676522690655]
    assert trace.device_events.start_ns.tolist() == [4458676522691653]


def test_events_of_unknown_kinds_beside_known_ones_change_nothing() -> None:
    """A run is read by its categories at once; where one is unknown, or missing, it is sorted first."""
    builder = launch_bound(3)
    document = builder.document()
    expected = columns(builder.trace())
    others = [
        {
            "ph": "X",
            "cat": "of tomorrow",
            "name": "?",
            "ts": 1,
            "dur": 1,
            "args": {"correlation": "x"},
        },
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "i", "cat": "kernel", "name": "k", "ts": 5.0},
        {"ph": "X", "cat": None, "name": None, "ts": 1, "dur": 1},
    ]
    for other in others:
        document["traceEvents"] = [builder.events[0], other, *builder.events[1:]]
        trace = parse_trace(json.dumps(document).encode())
        assert columns(trace) == expected
        assert (trace.events, trace.warnings) == (len(builder.events) + 1, ())


def test_control_characters_inside_names_are_survived(tmp_path: Path) -> None:
    text = json.dumps(launch_bound(2).document()).replace("aten::mul", "aten::\x01mul")
    path = tmp_path / "t.json"
    path.write_bytes(text.encode())
    assert len(read_trace(path).operators) == 2


@pytest.mark.parametrize("keep", [0, 1, 40, 190])
def test_a_file_without_a_whole_event_is_one_clear_sentence(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "short.json"
    path.write_bytes(launch_bound(3).write(tmp_path / "t.json").read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"short\.json"):
        read_trace(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\x1f\x8bnonsense", b"{}", b"[]", b'{"traceEvents": []}', b"\x00\x01", b"null",
     b'{"traceEvents": [1, 2]}', b'{"traceEvents": [{"ph": "X", "ts": NaN}'],
)  # fmt: skip
def test_what_is_no_trace_is_one_clear_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"other\.json"):
        read_trace(path)


def test_what_is_left_of_a_broken_file_is_used_with_a_warning(tmp_path: Path) -> None:
    content = launch_bound(30).write(tmp_path / "t.json").read_bytes()
    half = content[: len(content) // 2]
    for name, damaged in (("p.json", half), ("g.json", gzip.compress(content)[:-9])):
        (tmp_path / name).write_bytes(damaged)
        trace = read_trace(tmp_path / name)
        assert len(trace.device_events) > 10
        assert any("cut short" in warning and name in warning for warning in trace.warnings)


def test_an_event_that_cannot_be_read_is_left_out_and_counted() -> None:
    builder = launch_bound(3)
    document = builder.document()
    document["traceEvents"][2]["ts"] = "noon"
    document["traceEvents"][4]["args"] = ["a", "list"]
    trace = parse_trace(json.dumps(document).encode())
    assert trace.events == len(builder.events) - 2
    assert any("2 of 10 events could not be read" in warning for warning in trace.warnings)


def test_not_a_number_in_arguments_is_repaired() -> None:
    text = json.dumps(launch_bound(3).document()).replace('"stream": 7', '"stream": 7, "x": NaN')
    trace = parse_trace(text.replace('"x": NaN', '"x": -inf', 1).encode())
    assert len(trace.device_events) == 3
    assert any("not valid JSON" in warning for warning in trace.warnings)


def test_names_with_broken_characters_are_kept_readable() -> None:
    text = json.dumps(launch_bound(2).document())
    broken = text.replace("aten::mul", "aten::\\ud800mul").encode()
    assert "aten::\ufffdmul" in parse_trace(broken).names
    assert "aten::\ufffdmul" in parse_trace(text.encode().replace(b"aten::m", b"aten::\xffm")).names


def test_negative_durations_and_impossible_times_are_counted() -> None:
    document = launch_bound(3).document()
    document["traceEvents"][2]["dur"] = -5
    document["traceEvents"][5]["ts"] = 1e300
    warnings = " ".join(parse_trace(json.dumps(document).encode()).warnings)
    assert "1 events have a negative duration" in warnings
    assert "1 times are beyond any clock" in warnings


def test_numbers_that_no_counter_reaches_do_no_harm() -> None:
    builder = TraceBuilder()
    builder.launch((0, 1), (2, 3))
    builder.kernel(2**70, 5, 1)
    builder.events[-1]["args"]["stream"] = "7"
    builder.events[-1]["args"]["bytes"] = 1e30
    trace = builder.trace()
    assert trace.device_events.correlation.tolist() == [1, -1]
    assert trace.streams == ("7",)


def test_processes_with_names_instead_of_numbers_and_other_spellings_are_read() -> None:
    builder = TraceBuilder()
    builder.launch((0, 1), (2, 3))
    for event, pid in zip(builder.events, ("python", "GPU"), strict=True):
        event["pid"] = pid
    del builder.events[1]["args"]["device"]
    builder.events[0] |= {"cat": "hip_runtime", "name": "hipExtModuleLaunchKernel", "new": [{}]}
    builder.events.append({"ph": "M", "name": "process_name", "args": {"name": "GPU 0"}})
    builder.events.append({"ph": "X", "cat": "never heard of", "name": "?", "ts": 1, "dur": 1})
    trace = builder.trace()
    assert trace.devices == ("GPU",)
    assert lanes(trace).joined == 1


def test_a_file_is_cut_into_parts_between_events(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builder = launch_bound(200)
    for event in builder.events:
        event["args"] = {**event.get("args", {}), "list": [{"a": 1}, {"ph": "}, {"}]}
    path = builder.write(tmp_path / "t.json")
    whole = read_trace(path)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    parts = read_trace(path)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert columns(parts) == columns(read_trace(packed)) == columns(whole)
    assert len(whole.device_events) == 200
    assert parts.warnings == whole.warnings == ()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        read_trace(tmp_path / "nowhere.json")


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.operator("aten::linear", 0, 30)
    builder.operator("aten::t", 1, 2)
    builder.operator("aten::addmm", 5, 20)
    builder.launch((10, 3), (20, 4))
    builder.operator("aten::relu", 40, 10)
    builder.launch((42, 3), (50, 2))
    builder.kernel(99, 60, 1, name="stray")
    trace = read_trace(builder.write(tmp_path / "t.json"))
    owners = operators_of_events(trace).tolist()
    names = [trace.names[trace.operators.name[row]] if row >= 0 else None for row in owners]
    assert names == ["aten::addmm", "aten::relu", None]
