"""Ranks beside each other: clocks, who waits, who is waited for and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from graphdoctor.reporters import traces_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace.explain.folder import explain_folder
from graphdoctor.trace.explain.trace_report import TraceOptions
from graphdoctor.values.trace import FolderReport, RankComparison
from tests.support.schemas import schema_of
from tests.support.traces import TraceBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CLOCKS = (0.0, 70_000.0, -3_000.0, 1234.5)


def run(folder: Path, compute: list[float], host: list[float], **swapped: int) -> None:
    """4 steps on 4 ranks: 5 kernels, then an all_reduce that ends together, 100 us after the last."""
    builders = [TraceBuilder() for _ in compute]
    now = 1000.0
    for step in range(4):
        ready = []
        for rank, builder in enumerate(builders):
            clock, host_at = CLOCKS[rank], now + host[rank]
            device = host_at
            for _ in range(5):
                start = max(host_at + 8, device + 1)
                builder.launch((clock + host_at, 5), (clock + start, compute[rank]))
                builder.events[-1]["name"] = "gemm"
                host_at, device = host_at + 10, start + compute[rank]
            builder.step(step, clock + now, host_at - now)
            ready.append(device + 1)
        end = max(ready) + 100
        for rank, builder in enumerate(builders):
            call = builder.call("cudaLaunchKernelExC", CLOCKS[rank] + now + host[rank] + 60, 4)
            name = GATHER if step in (1, 2) and swapped.get("rank") == rank else ALL_REDUCE
            begin = ready[rank]
            builder.kernel(call, CLOCKS[rank] + begin, end - begin, name=name)
        now = end + 50
    for rank, builder in enumerate(builders):
        document: dict[str, Any] = {**builder.document(), "distributedInfo": {"rank": rank}}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))


def explained(folder: Path) -> tuple[FolderReport, RankComparison]:
    report = explain_folder(folder, TraceOptions(), lambda text: None)
    assert report.ranks is not None
    return report, report.ranks


def test_the_rank_that_computes_longer_is_the_straggler(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 200, 100], [0, 0, 0, 0])
    report, found = explained(tmp_path)
    assert found.straggler == "rank 2"
    assert "its device computes for 1,000 us a step, the others for 500 us" in found.reason
    assert "gemm (1,000 us against 500)" in found.reason
    assert [rank.clock_offset_us for rank in found.ranks] == pytest.approx(CLOCKS)
    assert [rank.waiting_us for rank in found.ranks] == pytest.approx([500, 500, 0, 500])
    assert [rank.caused_us for rank in found.ranks] == pytest.approx([0, 0, 500, 0])
    assert found.skew_us == pytest.approx(500)
    page = " ".join(traces_page.folder_page(report, Look()).split())
    assert "rank 2 comes last, and the others wait 500 µs for it" in page
    assert "1.60 times the mean on the busiest rank" in page
    jsonschema.validate(json.loads(written(report)), schema_of("trace"))


def test_the_rank_whose_host_comes_late_is_said_to_idle(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 100, 100], [0, 400, 0, 0])
    _, found = explained(tmp_path)
    assert found.straggler == "rank 1"
    assert "its device idles for" in found.reason


def late_rank(folder: Path, name: str) -> RankComparison:
    """Rank 1 comes 400 us late to each of four all_reduces, in a span of this name."""
    run(folder, [100, 100, 100, 100], [0, 400, 0, 0])
    file = folder / "rank1.json"
    document = json.loads(file.read_text())
    events = document["traceEvents"]
    for step in [event for event in events if event["name"].startswith("ProfilerStep#")]:
        category = "cpu_op" if name.startswith("autograd") else "user_annotation"
        # From before the first launch, so that waiting and launching both lie in it.
        events.append({**step, "cat": category, "name": name, "ts": step["ts"] + 10, "dur": 900})
    file.write_text(json.dumps(document))
    return explained(folder)[1]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("autograd::engine::evaluate_function: MulBackward0", "the backward pass"),
        ("Optimizer.step#AdamW.step", "the optimizer"),
        ("## load_batch ##", "load_batch"),
        ("nccl:all_reduce", ""),
    ],
)
def test_the_phase_in_which_the_last_rank_idles_is_named(
    tmp_path: Path, name: str, phase: str
) -> None:
    found = late_rank(tmp_path, name)
    assert (found.straggler, found.phase) == ("rank 1", phase)


def test_the_phase_that_launches_what_the_last_rank_computes_is_named(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 200, 100], [0, 0, 0, 0])
    file = tmp_path / "rank2.json"
    document = json.loads(file.read_text())
    events = document["traceEvents"]
    for step in [event for event in events if event["name"].startswith("ProfilerStep#")]:
        events.append({**step, "name": "## forward ##"})
    file.write_text(json.dumps(document))
    report, found = explained(tmp_path)
    assert (found.straggler, found.phase) == ("rank 2", "forward")
    page = " ".join(traces_page.folder_page(report, Look()).split())
    assert "for it: in forward, before all_reduce its device computes" in page


def test_what_the_last_rank_s_host_did_before_the_collective_is_named(tmp_path: Path) -> None:
    found = late_rank(tmp_path, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert "of that the host is in enumerate(DataLoader)#" in found.reason


def test_collectives_of_other_groups_are_no_idle_time(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 200, 100], [0, 0, 0, 0])
    file = tmp_path / "rank0.json"
    document = json.loads(file.read_text())
    events = document["traceEvents"]
    gemms = [event for event in events if event["name"] == "gemm"]
    for event in gemms:
        event["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
    file.write_text(json.dumps(document))
    _, found = explained(tmp_path)
    assert found.ranks[0].compute_us == 0
    assert found.straggler == "rank 2"
    assert "its device computes for 1,000 us a step, the others for 500 us" in found.reason


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    run(tmp_path, [100, 101, 100, 100.5], [0, 1, 0, 2])
    report, found = explained(tmp_path)
    assert (found.straggler, found.collectives) == ("", 4)
    assert "No rank is waited for" in traces_page.folder_page(report, Look())


def test_another_order_of_collectives_is_named(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 100, 100], [0, 0, 0, 0], rank=3)
    _, found = explained(tmp_path)
    assert "number 2 is all_reduce on rank 0 and all_gather on rank 3" in found.problem
    assert found.straggler == ""


def test_events_before_the_clocks_zero_are_explained_alike(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 100, 100], [0, 0, 0, 0])
    report, _ = explained(tmp_path)
    before_zero = report.workers[2]  # its clock is 3 ms behind
    assert (before_zero.sync_wait_ns, before_zero.host_ns) == (0, report.workers[0].host_ns)


def test_ranks_that_only_send_and_receive_are_said_not_to_be_comparable(tmp_path: Path) -> None:
    for rank in range(2):
        builder = TraceBuilder()
        for place in range(6):
            start = 1000.0 + place * 100
            call = builder.call("cudaLaunchKernelExC", start, 5)
            builder.kernel(call, start + 8, 40, name="ncclDevKernel_SendRecv(ncclDevKernelArgs)")
        document: dict[str, Any] = {**builder.document(), "distributedInfo": {"rank": rank}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    _, found = explained(tmp_path)
    assert "rank 0 has 0 collectives" in found.problem
    assert "6 kernels of communication" in found.problem
