"""Collectives by kind, size and process group; what other work hides; waiting told from working."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.reporters import trace_page, traces_page
from graphdoctor.reporters.look import Look
from graphdoctor.trace.explain.folder import explain_folder
from graphdoctor.trace.explain.trace_report import TraceOptions
from graphdoctor.values.trace import Communication
from tests.support.traces import TraceBuilder
from tests.trace.test_activity import explained
from tests.trace.test_ranks import ALL_REDUCE, run

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def said(kind: str, elements: tuple[int, int], ranks: str = "[0, 1]") -> dict[str, Any]:
    return {
        "Collective name": kind,
        "In msg nelems": elements[0],
        "Out msg nelems": elements[1],
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": ranks,
    }


def alone() -> TraceBuilder:
    """One kernel, long before and after which the device has nothing else to do."""
    builder = TraceBuilder()
    builder.launch((990, 3), (1000, 2))
    return builder


def communication(builder: TraceBuilder) -> Communication:
    found = explained(builder).work.communication
    assert found is not None
    return found


def collective(builder: TraceBuilder, start: float, dur: float, name: str = ALL_REDUCE) -> None:
    builder.kernel(
        builder.call("cudaLaunchKernelExC", start - 5, 1), start, dur, name=name, stream=9
    )


def test_collectives_are_told_by_kind_size_and_group() -> None:
    builder = alone()
    for start, size in ((1100, 1024), (1200, 1024), (1300, 4096)):
        collective(builder, start, 10)
        builder.events[-1]["args"] |= said("allreduce", (size, size))
    found = communication(builder).collectives
    assert [(one.kind, one.runs, one.nbytes) for one in found] == [
        ("all_reduce", 2, 2048),
        ("all_reduce", 1, 8192),
    ]
    assert {(one.group, one.ranks, one.dtype) for one in found} == {("3", (0, 1), "BFloat16")}
    page = " ".join(trace_page.render(explained(builder), Look()).split())
    assert (
        "all_reduce of 2 kB BFloat16, group 3 (2 ranks: 0, 1): 20 µs, 20 µs of it exposed" in page
    )


def test_the_call_says_what_a_kernel_of_no_arguments_does() -> None:
    builder = alone()
    builder.operator("record_param_comms", 1090, 8)
    builder.events[-1]["args"] |= said("_allgather_base", (512, 1024))
    collective(builder, 1100, 10, GENERIC)
    collective(builder, 1200, 20, GENERIC)
    known, unknown = sorted(communication(builder).collectives, key=lambda one: one.device_us)
    assert (known.kind, known.nbytes) == ("all_gather", 2048)
    assert (unknown.kind, unknown.nbytes, unknown.group) == ("communication", 0, "")


SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def test_an_all_to_all_is_told_from_the_sends_that_it_is_made_of() -> None:
    builder = alone()
    collective(builder, 1100, 10, SENDS)
    builder.annotation("nccl:all_to_all", 1094, 4)
    collective(builder, 1200, 20, SENDS)
    builder.events[-1]["args"] |= said("all_to_allv", (8, 8))
    collective(builder, 1300, 40, SENDS)
    builder.annotation("nccl:recv 0<-1", 1294, 4)
    collective(builder, 1400, 80, SENDS)
    kinds = {one.device_us: one.kind for one in communication(builder).collectives}
    assert kinds == {10: "all_to_all", 20: "all_to_all", 120: "send_recv"}


def test_torch_s_annotation_says_what_a_generic_kernel_does() -> None:
    builder = alone()
    builder.annotation("nccl:reduce_scatter", 1094, 4)
    collective(builder, 1100, 10, GENERIC)
    (found,) = communication(builder).collectives
    assert found.kind == "reduce_scatter"


def test_time_beside_other_work_is_told_from_exposed_time() -> None:
    builder = TraceBuilder()
    builder.launch((990, 3), (1000, 100))
    collective(builder, 1050, 100)
    collective(builder, 1080, 20)  # on the same stream of time as the other one: counted once
    found = communication(builder)
    assert (found.device_us, found.overlapped_us, found.exposed_us) == (100, 50, 50)
    assert sum(one.exposed_us for one in found.collectives) == 50


@pytest.mark.parametrize("ranks", ["[0, 1, ...]", 7, None])
def test_a_group_that_is_not_written_out_has_no_members(ranks: Any) -> None:
    builder = alone()
    collective(builder, 1100, 10)
    builder.events[-1]["args"] |= said("allreduce", (8, 8), ranks)
    (found,) = communication(builder).collectives
    assert (found.group, found.ranks) == ("3", ())


def test_the_last_rank_works_and_the_others_wait(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 200, 100], [0, 0, 0, 0])
    report = explain_folder(tmp_path, TraceOptions(), lambda text: None)
    assert report.ranks is not None
    assert [rank.working_us for rank in report.ranks.ranks] == pytest.approx([100] * 4)
    (wait,) = report.ranks.waits
    assert (wait.kind, wait.runs) == ("all_reduce", 1)
    assert (wait.waiting_us, wait.working_us) == (pytest.approx(375), pytest.approx(100))
    page = " ".join(traces_page.folder_page(report, Look()).split())
    assert "all_reduce: works 100 µs and waits 375 µs for the last rank" in page


def test_ranks_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    run(tmp_path, [100, 100, 100, 100], [0, 0, 0, 0])
    for rank, file in enumerate(sorted(tmp_path.iterdir())):
        document = json.loads(file.read_text())
        for event in document["traceEvents"]:
            if event["name"] == ALL_REDUCE:
                pair = "[0, 1]" if rank < 2 else "[2, 3]"
                event["args"] |= said("allreduce", (8, 8), pair)
        file.write_text(json.dumps(document))
    found = explain_folder(tmp_path, TraceOptions(), lambda text: None).ranks
    assert found is not None
    assert "no process group in common" in found.problem
    assert found.straggler == ""
