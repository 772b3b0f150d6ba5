"""Traces of several workers side by side: what differs between them, and by how much it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphdoctor.trace.explain.folder import explain_folder
from graphdoctor.trace.explain.trace_report import TraceOptions
from graphdoctor.values.compared_traces import FolderReport
from graphdoctor.values.errors import UsageError
from tests.support.traces import TraceBuilder


def worker(kernels: int, busy: float, step: float = 1000.0) -> TraceBuilder:
    """Two steps, and at the end of the second one more kernel, so that both are `step` us long."""
    builder = TraceBuilder()
    for number in range(2):
        begin = 1000.0 + number * step
        builder.step(number, begin, step)
        for index in range(kernels):
            at = begin + index * 10
            builder.launch((at, 2), (at + 5, busy))
        builder.launch((begin + step - 20, 2), (begin + step - 15, 20 - busy))
    return builder


def explained(folder: Path, *workers: TraceBuilder) -> FolderReport:
    for number, builder in enumerate(workers):
        builder.write(folder / f"w{number}.pt.trace.json")
    return explain_folder(folder, TraceOptions(gpu="h100"), lambda text: None)


def test_equal_workers_differ_in_nothing(tmp_path: Path) -> None:
    found = explained(tmp_path, worker(10, 5.0), worker(10, 5.0))
    assert (len(found.workers), found.differences, found.failures) == (2, (), ())


def test_the_least_and_the_most_of_a_figure_are_named_with_their_workers(tmp_path: Path) -> None:
    found = explained(tmp_path, worker(12, 5.0), worker(10, 5.0), worker(11, 5.0))
    busy, kernels = found.differences[:2]
    assert (busy.figure, busy.low, busy.high) == ("device_busy_us", 65, 75)
    assert kernels.figure == "kernels"
    assert (kernels.low, kernels.high) == (11, 13)
    assert (kernels.low_worker, kernels.high_worker) == ("w1", "w0")


def test_workers_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for number, kernels in enumerate((12, 10)):
        document = {**worker(kernels, 5.0).document(), "distributedInfo": {"rank": 0}}
        (tmp_path / f"w{number}.json").write_text(json.dumps(document))
    found = explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None)
    assert found.differences[0].low_worker == "rank 0 (w1.json)"


@pytest.mark.parametrize(("more", "is_told"), [(1, False), (2, True)])
def test_a_count_must_differ_by_more_than_one_in_fifty(
    tmp_path: Path, more: int, is_told: bool
) -> None:
    """Of 60 kernels a step, one more is 1 / 61, which is too little; two more are 2 / 62."""
    found = explained(tmp_path, worker(49 + 10, 2.0), worker(49 + 10 + more, 2.0))
    assert ("kernels" in {one.figure for one in found.differences}) == is_told


def test_a_share_must_differ_by_more_than_a_hundredth(tmp_path: Path) -> None:
    found = explained(tmp_path, worker(10, 5.0), worker(10, 5.5))
    busy = [one.device_busy_share for one in found.workers]
    assert 0 < abs(busy[1] - busy[0]) < 0.01
    assert "device_busy_share" not in {one.figure for one in found.differences}
    apart = explained(tmp_path, worker(10, 5.0), worker(10, 7.0))
    busy = [one.device_busy_share for one in apart.workers]
    assert abs(busy[1] - busy[0]) > 0.01
    assert "device_busy_share" in {one.figure for one in apart.differences}


def test_a_file_that_cannot_be_explained_is_named_and_the_others_are(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    found = explained(tmp_path, worker(10, 5.0))
    assert len(found.workers) == 1
    (failure,) = found.failures
    assert "broken.json" in failure


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no traces"):
        explained(tmp_path)
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match="None of the 1 files"):
        explained(tmp_path)
