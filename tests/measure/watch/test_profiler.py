"""A window of the profiler and what the program does never meet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.autograd.profiler as torch_profiler

from graphdoctor.measure.watch.profiler import Gate, Profiler, prepare_environment
from graphdoctor.measure.watch.sampling import Windows

FOR_EVER_S = 3600.0


def on_cpu(gate: Gate, window_s: float) -> Profiler:
    """One that looks at the CPU in the place of the GPU, through the same calls of kineto."""
    profiler = Profiler(gate, window_s)
    cpu = torch_profiler.profile(use_cpu=True, use_kineto=True)
    profiler._config, profiler._activities = cpu.config(), cpu.kineto_activities
    profiler._is_ready = True
    return profiler


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KINETO_LOG_LEVEL", "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # and so put back afterwards, whatever is set meanwhile
    prepare_environment()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def look_meanwhile(profiler: Profiler, run: Callable[[], object]) -> list[object]:
    """What `look` gives in a thread, during which `run` runs once the window is open."""
    opened, found = threading.Event(), []
    wait = profiler._gate.wait

    def announced(seconds: float) -> None:
        opened.set()
        wait(seconds)

    profiler._gate.wait = announced  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: found.append(profiler.look()))
    thread.start()
    assert opened.wait(60)
    run()
    thread.join(60)
    assert not thread.is_alive()
    return found


def test_a_window_has_events_and_a_length(gate: Gate) -> None:
    profiler = on_cpu(gate, FOR_EVER_S)
    gate.wait = lambda seconds: torch.ones(3) + 1  # type: ignore[method-assign]
    with profiler.on():
        found = profiler.look()
    assert found is not None and found[1] > 0
    assert {"aten::ones", "aten::add"} <= {event.name for event in found[0]}
    assert not any(event.is_on_device for event in found[0])


def test_a_capture_closes_the_window_and_none_opens_in_it(gate: Gate) -> None:
    profiler = on_cpu(gate, FOR_EVER_S)
    with profiler.on():
        (found,) = look_meanwhile(profiler, lambda: gate.hold("graph", "it captured"))
        assert found is not None
        assert profiler.look() is None
        gate.release("graph")
        gate.wait = lambda seconds: None  # type: ignore[method-assign]
        assert profiler.look() is not None


def test_a_program_that_profiles_itself_has_the_profiler_to_itself(gate: Gate) -> None:
    profiler = on_cpu(gate, FOR_EVER_S)
    theirs: list[str] = []

    def profiles() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            assert profiler.look() is None
            torch.ones(3) + 1
        theirs.extend(event.key for event in own.key_averages())

    with profiler.on():
        (found,) = look_meanwhile(profiler, profiles)
        assert found is not None
        assert {"aten::ones", "aten::add"} <= set(theirs)
        gate.wait = lambda seconds: None  # type: ignore[method-assign]
        assert profiler.look() is not None


def test_torch_s_profiler_is_left_as_it_was(gate: Gate) -> None:
    before = {name: getattr(torch_profiler, name) for name in dir(torch_profiler)}
    with Profiler(gate).on():
        assert torch_profiler._enable_profiler is not before["_enable_profiler"]
    assert {name: getattr(torch_profiler, name) for name in dir(torch_profiler)} == before


def test_a_torch_that_cannot_trace_cuda_is_a_reason(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: set())
    profiler = Profiler(gate)
    with profiler.on():
        assert not profiler.set_up()
    assert "CUPTI" in profiler.reason


def test_windows_never_take_cupti_out_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    prepare_environment()
    assert os.environ["TEARDOWN_CUPTI"] == "0"


# On a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def seen_on_gpu(gate: Gate) -> Iterator[Callable[[Callable[[], object]], Windows]]:
    """The counts of one window in which a function runs, to its end on the device."""
    torch.ones(1, device="cuda")
    profiler = Profiler(gate)

    def look(run: Callable[[], object]) -> Windows:
        def inside(seconds: float) -> None:
            run()
            torch.cuda.synchronize()

        gate.wait = inside  # type: ignore[method-assign]
        found = profiler.look()
        assert found is not None
        sums = Windows()
        sums.add(*found)
        return sums

    with profiler.on():
        assert profiler.set_up(), profiler.reason
        yield look


@pytest.mark.gpu
def test_launches_syncs_and_copies_of_a_loop_are_the_true_ones(seen_on_gpu) -> None:
    data = torch.ones(64, device="cuda")
    data.add_(1).mul_(2)
    data[0].item()

    def loop() -> None:
        for _ in range(100):
            data.add_(1)
            data.mul_(0.5)
            data[0].item()

    calls = seen_on_gpu(loop).read()
    assert (calls.launches, calls.graph_launches) == (200, 0)
    assert calls.copies == {"device to host": 100}
    assert (calls.operations, calls.operations_in_graphs) == (300, 0)
    assert calls.syncs["cudaStreamSynchronize"] == 100
    assert sum(calls.syncs.values()) == 101  # and the test's own


@pytest.mark.gpu
def test_replays_are_launches_of_graphs_and_their_kernels_are_in_graphs(seen_on_gpu) -> None:
    data = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            data.add_(1)

    def loop() -> None:
        for _ in range(50):
            graph.replay()
            data.mul_(0.5)

    calls = seen_on_gpu(loop).read()
    assert (calls.graph_launches, calls.operations_in_graphs) == (50, 500)
    # Some versions fill the generator's seed and offset before each replay (pytorch#143572).
    assert calls.launches in (50, 150)
    assert calls.operations == 500 + calls.launches


@pytest.mark.gpu
def test_a_window_sees_the_launches_of_other_threads(seen_on_gpu) -> None:
    data = torch.ones(64, device="cuda")
    data.add_(1)

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: [data.add_(1) for _ in range(100)])
        thread.start()
        thread.join()

    assert seen_on_gpu(elsewhere).read().launches == 100


@pytest.mark.gpu
def test_windows_before_during_and_after_captures_leave_graphs_right(seen_on_gpu) -> None:
    data = torch.zeros(8, device="cuda")
    for rounds in range(1, 6):
        seen_on_gpu(lambda: data.add_(0))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            data.add_(1)
        seen_on_gpu(graph.replay)
        graph.replay()
        assert data.tolist() == [2.0 * rounds] * 8


@pytest.mark.gpu
def test_kernels_of_graphs_that_were_captured_between_windows_are_seen(seen_on_gpu) -> None:
    data = torch.zeros(8, device="cuda")
    seen_on_gpu(lambda: data.add_(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            data.add_(1)
    for _ in range(3):
        calls = seen_on_gpu(lambda: [graph.replay() for _ in range(20)]).read()
        assert (calls.graph_launches, calls.operations_in_graphs) == (20, 200)


@pytest.mark.gpu
def test_threads_that_launch_all_the_time_go_on_beside_many_windows() -> None:
    gate, is_over, counts = Gate(), threading.Event(), [0, 0, 0]
    data = [torch.zeros(8, device="cuda") for _ in counts]

    def launches(number: int) -> None:
        while not is_over.is_set():
            data[number].add_(1)
            counts[number] += 1

    profiler = Profiler(gate, 0.005)
    with profiler.on():
        assert profiler.set_up(), profiler.reason
        threads = [threading.Thread(target=launches, args=(n,)) for n in range(len(counts))]
        for each in threads:
            each.start()
        seen = [profiler.look() for _ in range(40)]
        is_over.set()
        for each in threads:
            each.join()
    # Another process may have the GPU for longer than a window.
    assert sum(found is not None and bool(found[0]) for found in seen) > len(seen) // 2
    assert [each[0].item() for each in data] == [float(n) for n in counts]
