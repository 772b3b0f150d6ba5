"""Traces of several workers side by side: what differs between them, and by how much it must."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.reporters import traces_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace.explain import folder as folder_module
from graphdoctor.trace.explain.folder import explain_folder, process_pool
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.trace.read.file import read_trace
from graphdoctor.values.errors import UsageError
from graphdoctor.values.trace import FolderReport
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


def test_of_several_profiler_cycles_the_newest_of_each_rank_counts(tmp_path: Path) -> None:
    """torch's `tensorboard_trace_handler` writes a file a cycle, numbered by ns, Composer by batch."""
    for rank, cycle, kernels in ((0, 90, 3), (0, 100, 10), (1, 90, 4), (1, 100, 10)):
        worker(kernels, 5.0).write(tmp_path / f"rank{rank}.{cycle}.pt.trace.json")
    (tmp_path / "other").mkdir()
    worker(10, 5.0).write(tmp_path / "other" / "rank0.90.pt.trace.json")
    found = explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None)
    assert sorted(Path(one.file).name for one in found.workers) == [
        "rank0.100.pt.trace.json",
        "rank0.90.pt.trace.json",
        "rank1.100.pt.trace.json",
    ]
    assert found.differences == ()
    assert found.left_out.startswith("2 files of earlier profiler cycles are left out")
    assert found.left_out in " ".join(traces_page.folder_page(found, Look(width=120)).split())


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


class Dying(Future):  # type: ignore[type-arg]
    def result(self, timeout: float | None = None) -> object:
        raise BrokenProcessPool("a process ended")


class LosesSome(ThreadPoolExecutor):
    """Every second result is lost, as when its process is killed."""

    lost = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = super().submit(*args, **kwargs)
        self.lost += 1
        if self.lost % 2:
            future.result()
            future = Dying()
            future.set_result(None)
        return future


def traces(folder: Path) -> None:
    for number in range(4):
        document = worker(10 + number, 5.0 + number).document() | {
            "distributedInfo": {"rank": number}
        }
        (folder / f"w{number}.json").write_text(json.dumps(document))
    (folder / "w2b.json").write_text("{}")


@pytest.mark.parametrize("executor", [ThreadPoolExecutor(2), LosesSome(2)], ids=["all", "losing"])
def test_side_by_side_gives_the_same_report_byte_for_byte(
    tmp_path: Path, executor: Executor
) -> None:
    traces(tmp_path)
    serial = written(explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None))
    told: list[str] = []
    with executor:
        found = explain_folder(tmp_path, TraceOptions(gpu="h100"), told.append, executor=executor)
    assert written(found) == serial
    assert [worker.worker for worker in found.workers] == [f"rank {number}" for number in range(4)]
    assert "w2b.json" in found.failures[0]
    # A busy machine adds how long the rest will take.
    read = [text.partition(",")[0] for text in told]
    assert read == [f"read {number} of 5" for number in range(1, 6)]


class Fails(ThreadPoolExecutor):
    """Every rank once, as beside one that workers die of, and rank 1 again and again."""

    def __init__(self) -> None:
        super().__init__(1)
        self.seen: set[str] = set()

    def submit(self, explain: Any, path: Any) -> Future[Any]:  # type: ignore[override]
        is_first = path.name not in self.seen
        self.seen.add(path.name)
        if is_first or path.name == "w1.json":
            future: Future[Any] = Future()
            future.set_exception(MemoryError("its worker died"))
            return future
        return super().submit(explain, path)


def test_what_an_executor_cannot_read_is_tried_again_then_named(tmp_path: Path) -> None:
    traces(tmp_path)
    with Fails() as executor:
        found = explain_folder(
            tmp_path, TraceOptions(gpu="h100"), lambda text: None, executor=executor
        )
    assert [worker.worker for worker in found.workers] == ["rank 0", "rank 2", "rank 3"]
    assert "w1.json could not be explained: MemoryError: its worker died" in found.failures[0]


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(1)], ids=["here", "executor"])
def test_the_time_that_is_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: Executor | None
) -> None:
    traces(tmp_path)
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: next(clock))
    told: list[str] = []
    explain_folder(tmp_path, TraceOptions(gpu="h100"), told.append, executor=executor)
    assert told[1].startswith(
        "reading 2 of 5, 2:00 left" if executor is None else "read 2 of 5, 1:30 left"
    )


def test_processes_give_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces(tmp_path)
    serial = written(explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None))
    monkeypatch.setattr(folder_module, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(folder_module, "_cores", lambda: 2)
    with process_pool(tmp_path, None) as pool:
        assert isinstance(pool, ProcessPoolExecutor)
        found = explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None, executor=pool)
    assert written(found) == serial


@pytest.mark.parametrize(
    ("cores", "most_bytes", "least", "processes"),
    [
        (4, None, 1, 4),
        (8, None, 1, 5),  # no more than files
        (1, None, 1, 0),
        (4, None, 1 << 30, 0),  # too little to start processes for
        (4, 3.5, 1, 3),  # so many times what the largest file takes
        (4, 1.5, 1, 0),
    ],
)
def test_cores_and_memory_limit_the_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    most_bytes: float | None,
    least: int,
    processes: int,
) -> None:
    traces(tmp_path)
    started: list[int] = []
    monkeypatch.setattr(folder_module, "_WORTH_PROCESSES", least)
    monkeypatch.setattr(folder_module, "_cores", lambda: cores)

    def pool(count: int, **kwargs: object) -> ThreadPoolExecutor:
        started.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(folder_module, "ProcessPoolExecutor", pool)
    largest = max(path.stat().st_size for path in tmp_path.iterdir())
    most = None if most_bytes is None else int(most_bytes * largest * folder_module._EACH_BYTE)
    with process_pool(tmp_path, most) as found:
        assert (found is None) == (processes == 0)
    assert started == ([processes] if processes else [])


def test_of_a_large_job_a_few_ranks_are_explained_in_full(tmp_path: Path) -> None:
    for number in range(20):
        busy = 7.0 if number == 11 else 5.0
        document = worker(10, busy).document() | {"distributedInfo": {"rank": number}}
        (tmp_path / f"w{number:02}.json").write_text(json.dumps(document))
    found = explain_folder(tmp_path, TraceOptions(gpu="h100"), lambda text: None)
    full = [one for one in found.workers if one.drawn is not None]
    assert 1 < len(full) < 16
    assert all(one.longest_gaps for one in full)
    short = next(one for one in found.workers if one.drawn is None)
    assert (short.longest_gaps, short.queue.points) == ((), ())
    assert short.work.kernels == full[0].work.kernels
    alone = explain_trace(
        read_trace(Path(full[0].file)), Path(full[0].file), TraceOptions(gpu="h100")
    )
    assert full[0] == alone
