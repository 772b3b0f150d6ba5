"""A SQLite export of Nsight Systems is explained as torch.profiler's trace of the same run is."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from graphdoctor.cli import main
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.errors import UsageError
from tests.support.nsight import write_nsight
from tests.support.trace_stories import Story
from tests.support.traces import launch_bound

FIGURES = (
    "verdict", "span_ns", "device_busy_ns", "host_ns", "launch_path_ns", "sync_wait_ns", "device_gap_ns",
    "unattributed_ns", "step_basis", "steps", "syncs", "operators", "launches", "gpu", "work", "graphs", "queue",
)  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_the_same_run_gives_the_same_figures_in_both_formats(tmp_path: Path, seed: int) -> None:
    story = Story(seed)
    story.events = [one for one in story.events if one["cat"] != "python_function"]
    torch_file, nsight_file = (
        story.write(tmp_path / "t.json"),
        write_nsight(story, tmp_path / "t.sqlite"),
    )
    known = TraceOptions(wall_us=None)
    from_torch, from_nsight = (
        msgspec.to_builtins(explain_trace(read_trace(path), path, known))
        for path in (torch_file, nsight_file)
    )
    for name in FIGURES:
        assert from_nsight[name] == from_torch[name], name
    assert from_nsight["device_events"] == from_torch["device_events"] > 20


def test_ids_of_several_processes_are_kept_apart(tmp_path: Path) -> None:
    one, two = (
        read_trace(write_nsight(launch_bound(20), tmp_path / f"{len(pids)}.sqlite", processes=pids))
        for pids in ((4000,), (4000, 77))
    )
    assert len(two.device_events) == 2 * len(one.device_events)
    assert (one.devices, two.devices) == (("0",), ("0 of process 4000", "0 of process 77"))
    report = explain_trace(two, Path("two.sqlite"))
    assert report.joined_share == 1
    assert report.launch_bound_ns == explain_trace(one, Path("one.sqlite")).launch_bound_ns


def test_a_graph_that_was_traced_as_a_whole_is_one_event(tmp_path: Path) -> None:
    builder = launch_bound(20)
    launch = builder.call("cudaGraphLaunch", 1150, 3)
    path = write_nsight(builder, tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,"
            " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER)"
        )
        row = (1_160_000, 1_165_000, 0, 7, launch, 4000 << 24, 9)
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?, ?, ?, ?)", row
        )
        database.commit()
    graphs = explain_trace(read_trace(path), path).graphs
    assert graphs is not None
    (replay,) = graphs.replays
    assert (replay.graph_id, replay.launches, replay.longest_kernels) == (9, 1, ("CUDA graph 9",))


def test_columns_of_another_version_may_be_missing(tmp_path: Path) -> None:
    path = write_nsight(launch_bound(20), tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database:
        for column in ("globalPid", "demangledName", "contextId"):
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
        database.execute("DROP TABLE NVTX_EVENTS")
        database.commit()
    report = explain_trace(read_trace(path), path)
    assert (report.joined_share, report.kernels) == (1, 20)
    assert [one.name for one in report.work.kernels] == ["k"]


def test_another_database_and_a_broken_one_are_refused_with_a_sentence(tmp_path: Path) -> None:
    other = tmp_path / "rocpd.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE rocpd_kernel_dispatch (start INTEGER)")
    with pytest.raises(UsageError, match=r"without CUDA.s activities.*record with torch\.profiler"):
        read_trace(other)
    whole = write_nsight(launch_bound(400), tmp_path / "t.sqlite").read_bytes()
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cannot be read as an export of Nsight Systems"):
        read_trace(broken)
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(whole))
    with pytest.raises(UsageError, match="packed or comes through a pipe"):
        read_trace(packed)
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"\x00")
    with pytest.raises(UsageError, match="nsys export --type sqlite"):
        read_trace(report)
    with pytest.raises(UsageError, match="takes more than 0 MB"):
        read_trace(tmp_path / "t.sqlite", most_bytes=1000)


def test_an_export_is_not_annotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_nsight(launch_bound(20), tmp_path / "t.sqlite")
    assert main(["trace", str(path), "--annotate", str(tmp_path / "out.json.gz")]) == 2
    assert "copies a trace of torch.profiler" in capsys.readouterr().err
    assert main(["trace", str(path)]) == 0
    assert "Nsight Systems slows the CPU" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((1, 1, 2), "Memcpy HtoD (Pinned -> Device)"),
        ((2, 2, 0), "Memcpy DtoH (Device -> Pageable)"),
        ((8, 2, 2), "Memcpy DtoD (Device -> Device)"),
        ((9, 0, 1), "Memcpy HtoH (Pageable -> Pinned)"),
        ((10, 2, 4), "Memcpy PtoP (Device -> Managed)"),
        ((1, 3, 2), "Memcpy HtoD (Array -> Device)"),
        ((99, 98, 97), "Memcpy Unknown (Unknown -> Unknown)"),
    ],
)
def test_a_copy_has_the_name_that_torch_s_profiler_gives_it(
    tmp_path: Path, kinds: tuple[int, int, int], name: str
) -> None:
    path = write_nsight(launch_bound(2), tmp_path / "t.sqlite")
    row = (2_000_000, 2_001_000, 0, 7, 99, 4000 << 24, 4, *kinds)
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * 10)})", row
        )
        database.commit()
    trace = read_trace(path)
    copied = trace.device_events.take(trace.device_events.kind == 1)
    assert [trace.names[place] for place in copied.name.tolist()] == [name]
    assert copied.nbytes.tolist() == [4]


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        ((), ("Test GPU",)),
        (("UPDATE TARGET_INFO_CUDA_DEVICE SET cudaId = 2",), ("", "", "Test GPU")),
        (("UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = 9",), ("",)),
        (("DELETE FROM TARGET_INFO_CUDA_DEVICE",), ("", "", "", "Test GPU")),
        (("DROP TABLE TARGET_INFO_CUDA_DEVICE",), ("", "", "", "Test GPU")),
        (("DELETE FROM TARGET_INFO_GPU", "DELETE FROM TARGET_INFO_CUDA_DEVICE"), ()),
        (("DROP TABLE TARGET_INFO_GPU",), ()),
    ],
)
def test_a_gpu_s_name_stands_at_the_number_that_cuda_gives_it(
    tmp_path: Path, statements: tuple[str, ...], names: tuple[str, ...]
) -> None:
    path = changed(write_nsight(launch_bound(2), tmp_path / "t.sqlite"), *statements)
    assert read_trace(path).about.device_names == names


def test_threads_streams_and_lost_numbers_are_read_as_they_are(tmp_path: Path) -> None:
    path = changed(
        write_nsight(launch_bound(2), tmp_path / "t.sqlite"),
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0 WHERE rowid = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 1",
    )
    trace = read_trace(path)
    assert set(trace.threads) == {"4000/4001"}
    assert trace.streams == tuple(map(str, range(8)))  # the builder's is number 7
    events = trace.device_events
    assert (events.correlation < 0).tolist() == [True, False]
    assert int(events.end_ns[0] - events.start_ns[0]) == 0
    counted = (trace.device_events, trace.calls, trace.operators, trace.annotations)
    assert trace.events == sum(map(len, counted))
