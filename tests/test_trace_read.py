"""Reading traces: files as torch.profiler writes them, whole, packed, damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from graphdoctor.errors import UsageError
from graphdoctor.trace import kernel_totals, launching_operators, operator_totals, read_trace
from tests.traces import TraceBuilder, launch_bound


def test_plain_and_gzip_and_bare_list_read_the_same(tmp_path: Path) -> None:
    builder = launch_bound(3)
    plain = read_trace(builder.write(tmp_path / "t.json"))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(builder.document()).encode()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(builder.events))
    assert read_trace(packed) == plain
    assert read_trace(bare).device_events == plain.device_events
    assert plain.device_names == ("Test GPU",)
    assert [step.name for step in plain.steps] == ["ProfilerStep#0"]
    assert (len(plain.device_events), len(plain.calls), len(plain.operators)) == (3, 3, 3)


def test_times_keep_every_nanosecond(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch((4317453815758.031, 0.003), (4317453815759.127, 2.001))
    trace = read_trace(builder.write(tmp_path / "t.json"))
    kernel = trace.device_events[0]
    assert (kernel.start_ns, kernel.end_ns) == (4317453815759127, 4317453815761128)
    assert trace.calls[0].end_ns - trace.calls[0].start_ns == 3


def test_whole_microseconds_since_1970_stay_exact(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch((1683564901951734, 15), (1683564901951763, 3))
    assert read_trace(builder.write(tmp_path / "t.json")).calls[0].start_ns == 1683564901951734000


def test_control_characters_inside_names_are_survived(tmp_path: Path) -> None:
    text = json.dumps(launch_bound(2).document()).replace("aten::mul", "aten::\x01mul")
    path = tmp_path / "t.json"
    path.write_bytes(text.encode())
    assert len(read_trace(path).operators) == 2


@pytest.mark.parametrize("keep", [0, 1, 40, 600])
def test_a_file_that_is_cut_short_is_one_clear_sentence(tmp_path: Path, keep: int) -> None:
    content = launch_bound(3).write(tmp_path / "t.json").read_bytes()
    for name, damaged in (("p.json", content[:keep]), ("g.json", gzip.compress(content)[:-9])):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UsageError, match=name):
            read_trace(tmp_path / name)


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
    names = [trace.operators[place].name for place in launching_operators(trace).values()]
    assert names == ["aten::addmm", "aten::relu"]
    totals = {total.name: total for total in operator_totals(trace)}
    assert (totals["aten::addmm"].launches, totals["aten::addmm"].device_us) == (1, 4.0)
    assert totals["aten::linear"].launches == 0
    assert {(total.name, total.operator) for total in kernel_totals(trace)} == {
        ("k", "aten::addmm"),
        ("k", "aten::relu"),
        ("stray", ""),
    }
