"""The thread beside the program looks, tells and reports, and lets nothing of the program fail."""

from __future__ import annotations

import functools
import threading
import time

import pytest
import torch

from graphdoctor.measure.watch import sampling, watcher
from graphdoctor.measure.watch.sampling import Seen
from graphdoctor.measure.watch.watcher import Watcher
from graphdoctor.values.watched import WatchReport

WINDOW = ([Seen("cudaLaunchKernel", False, 1), Seen("kernel", True, 1)], 0.02)


class Told:
    """What a watcher tells, and an event for each kind of it."""

    def __init__(self, every_s: float = 3600.0, *, with_cupti: bool = True) -> None:
        self.lines: list[tuple[WatchReport, WatchReport | None]] = []
        self.reports: list[WatchReport] = []
        self.several_lines, self.reported = threading.Event(), threading.Event()
        self.many_replays_seen = threading.Event()
        self.watcher = Watcher(
            ("serve.py",), every_s, self._line, self._report, with_cupti=with_cupti
        )

    def _line(self, now: WatchReport, before: WatchReport | None) -> None:
        self.lines.append((now, before))
        if len(self.lines) >= 3:
            self.several_lines.set()
        if now.calls.graph_launches >= 100:
            self.many_replays_seen.set()

    def _report(self, now: WatchReport) -> None:
        self.reports.append(now)
        self.reported.set()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the profiler gives, from the last on, then None; its windows are due at once."""
    found: list[object] = []

    def look(profiler: object) -> object:
        each = found.pop() if found else None
        if isinstance(each, Exception):
            raise each
        return each

    monkeypatch.setattr(watcher.Profiler, "set_up", lambda profiler: True)
    monkeypatch.setattr(watcher.Profiler, "look", look)
    monkeypatch.setattr(watcher, "_RETRY_S", 0.001)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda starts: starts())
    monkeypatch.setattr(sampling, "EXPECTED_COST_S", 1e-6)
    return found


def test_windows_are_summed_and_what_they_cost_is_said(looks: list[object]) -> None:
    looks += [WINDOW]
    told = Told(0.02)
    with told.watcher.on():
        assert told.several_lines.wait(60)
    report = told.watcher.report("finished", 0)
    assert (report.calls.windows, report.calls.launches) == (1, 1)
    assert report.cost.windows_s > 0
    assert any("--cupti" in note for note in report.notes)
    assert report.cost.share == pytest.approx(report.cost.windows_s / report.wall_s)


def test_a_line_comes_with_the_report_of_the_line_before(looks: list[object]) -> None:
    told = Told(0.02)
    with told.watcher.on():
        assert told.several_lines.wait(60)
    assert told.lines[0][1] is None
    assert told.lines[1][1] is told.lines[0][0]


def test_a_report_comes_when_it_is_asked_for(looks: list[object]) -> None:
    told = Told()
    with told.watcher.on():
        told.watcher.ask("report")
        assert told.reported.wait(60)
    assert [report.state for report in told.reports] == ["running"]


def test_the_last_word_is_waited_for() -> None:
    told = Told()
    with told.watcher.on():
        told.watcher.ask_and_wait("terminated", 60)
        assert [report.state for report in told.reports] == ["terminated"]


def test_windows_that_were_put_off_are_said_with_the_reason(looks: list[object]) -> None:
    told = Told(0.02)
    told.watcher._gate.hold("theirs", "it profiled itself")
    with told.watcher.on():
        assert told.several_lines.wait(60)
    assert told.watcher.report().notes == (
        "Windows that were put off, since it profiled itself then: 1.",
    )


def test_a_profiler_that_fails_is_left_alone_and_said(looks: list[object]) -> None:
    looks += [WINDOW, RuntimeError("CUPTI_ERROR_UNKNOWN")]
    told = Told(0.02)
    with told.watcher.on():
        assert told.several_lines.wait(60)
    report = told.watcher.report()
    assert report.notes == (
        "Launches, syncs and copies are not known. torch's profiler failed: CUPTI_ERROR_UNKNOWN",
    )
    assert report.calls.windows == 0 and len(looks) == 1


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "No window saw any CUDA call"),
        ([Seen("cudaGraphLaunch", False, 1)], "none of the GPU work"),
        ([Seen("cudaGraphLaunch", False, 1), Seen("kernel", True, 1)], ""),
        ([Seen("cudaStreamSynchronize", False, 1)], ""),
    ],
)
def test_what_windows_did_not_see_is_said(
    looks: list[object], events: list[Seen], said: str
) -> None:
    looks += [(events, 0.02)]
    told = Told(0.02)
    with told.watcher.on():
        assert told.several_lines.wait(60)
    notes = told.watcher.report("finished", 0).notes
    lacking = [note for note in notes if "put off" not in note and "(--cupti)" not in note]
    assert [said in note for note in lacking] == ([True] if said else [])


def test_an_exception_of_the_program_passes_and_the_thread_ends() -> None:
    told = Told()
    before = torch.cuda.CUDAGraph.replay
    with pytest.raises(ValueError, match="theirs"), told.watcher.on():
        raise ValueError("theirs")
    assert not told.watcher._thread.is_alive()
    assert torch.cuda.CUDAGraph.replay is before


def test_the_profiler_starts_with_the_program_s_cuda_and_in_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued, started = [], []
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    monkeypatch.setattr(
        watcher.Profiler, "set_up", lambda profiler: bool(started.append(threading.get_ident()))
    )
    told = Told()
    with told.watcher.on():
        assert started == []
        (starts,) = queued
        starts()
        assert started == [threading.get_ident()]
    starts()  # of a child, or after the end
    assert len(started) == 1


def test_without_being_asked_to_it_opens_no_window_and_starts_no_profiler(
    looks: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks += [WINDOW]
    monkeypatch.setattr(watcher.Profiler, "on", lambda profiler: pytest.fail("started"))
    told = Told(0.02, with_cupti=False)
    with told.watcher.on():
        told.watcher._set_up()  # as before a first capture
        assert told.several_lines.wait(60)
    report = told.watcher.report()
    assert (report.calls.windows, len(looks), report.notes) == (0, 1, ())


@pytest.mark.gpu
def test_a_program_s_eager_work_waits_and_replays_are_counted_on_a_gpu() -> None:
    told = Told(with_cupti=False)
    with told.watcher.on():
        data, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            data.mul_(1.0)
        before = told.watcher.report()
        for _ in range(100):
            graph.replay()
            data + 1
            torch.cuda.synchronize()
    report = told.watcher.report("finished", 0)
    assert report.device == "watched" and report.calls.windows == 0
    assert report.allocator is not None and before.allocator is not None
    assert report.allocator.allocations - before.allocator.allocations == 100
    assert (
        report.waits["torch.cuda.synchronize()"] - before.waits.get("torch.cuda.synchronize()", 0)
        == 100
    )
    assert (report.replays, report.captures) == (100, 1)
    assert report.cost.setup_s == 0


@pytest.mark.gpu
def test_a_program_s_windows_are_seen_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long CUDA takes to start: a window that opened then saw nothing, and is none of those waited for."""
    monkeypatch.setattr(sampling, "EXPECTED_COST_S", 0.001)
    monkeypatch.setattr(watcher, "DutyCycle", functools.partial(sampling.DutyCycle, share=0.5))
    told = Told(0.1)
    replays, deadline_s = 0, time.monotonic() + 120
    with told.watcher.on():
        data = torch.ones(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                data.mul_(1.0)
        seen = told.many_replays_seen
        while not seen.is_set() and time.monotonic() < deadline_s:
            graph.replay()
            data.add_(1)
            data[0].item()
            replays += 1
    report = told.watcher.report("finished", 0)
    assert seen.is_set() and report.device == "watched"
    assert (report.replays, report.captures) == (replays, 1)
    assert 100 <= report.calls.graph_launches <= replays
    assert report.cost.setup_s > 0
    if report.calls.lacks_work:  # other processes had the GPU
        assert any("none of the GPU work" in note for note in report.notes)
    else:
        assert report.calls.operations_in_graphs / report.calls.operations > 0.8
