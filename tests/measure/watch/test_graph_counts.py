"""Graphs are counted by the line that captures them, and the graph type is left as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.measure.watch.profiler import Gate
from graphdoctor.measure.watch.watcher import GraphCounts


class Graph:
    """Takes what torch.cuda.CUDAGraph takes."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if pool == "refused":
            raise RuntimeError("not on this stream")

    def capture_end(self) -> None:
        pass

    def replay(self) -> str:
        return "replayed"


class Named(Graph):
    """Has its methods from another class."""


@pytest.fixture
def counts() -> Iterator[GraphCounts]:
    counts = GraphCounts(Gate())
    with counts.on(Graph):
        yield counts


def capture(graph: Graph | None = None) -> Graph:
    graph = graph or Graph()
    graph.capture_begin()
    graph.capture_end()
    return graph


def test_replays_are_counted_by_the_line_that_captured(counts: GraphCounts) -> None:
    first, other = Graph(), Graph()
    first.capture_begin()
    first.capture_end()
    other.capture_begin(pool=None)
    other.capture_end()
    assert [first.replay() for _ in range(3)] == ["replayed"] * 3
    other.replay()
    one, two = counts.read()
    assert (one.replays, two.replays) == (3, 1)
    assert one.location is not None and two.location is not None
    assert one.location.file == __file__ and two.location.line == one.location.line + 2
    assert (one.captures, one.again, one.alive) == (1, 0, 1)


def test_graphs_of_several_shapes_before_the_first_replay_are_no_captures_again(
    counts: GraphCounts,
) -> None:
    graphs = [capture() for _ in range(4)]
    for graph in graphs:
        graph.replay()
    (line,) = counts.read()
    assert (line.captures, line.again, line.alive, line.replays) == (4, 0, 4, 4)


def test_a_capture_after_replays_is_one_again_of_a_new_graph_or_the_same(
    counts: GraphCounts,
) -> None:
    graph = capture()
    graph.replay()
    graph.replay()
    new = capture()
    capture(graph)
    (line,) = counts.read()
    assert (line.captures, line.again, line.alive) == (3, 2, 2)
    assert new is not graph


def test_graphs_that_are_gone_are_forgotten(counts: GraphCounts) -> None:
    for _ in range(100):
        capture().replay()
    gc.collect()
    (line,) = counts.read()
    assert (line.captures, line.replays, line.alive) == (100, 100, 0)
    assert counts._of == {}


def test_replays_of_a_graph_that_nobody_saw_captured_are_counted_too() -> None:
    graph = capture()
    counts = GraphCounts(Gate())
    with counts.on(Graph):
        graph.replay()
    (line,) = counts.read()
    assert (line.location, line.replays, line.captures) == (None, 1, 0)


def test_no_window_opens_during_a_capture_nor_stays_closed_after_a_refused_one() -> None:
    gate = Gate()
    counts = GraphCounts(gate)
    with counts.on(Graph):
        graph = Graph()
        graph.capture_begin()
        assert gate.held_for
        graph.capture_end()
        assert not gate.held_for
        with pytest.raises(RuntimeError, match="not on this stream"):
            graph.capture_begin(pool="refused")
        assert not gate.held_for
    assert sum(line.captures for line in counts.read()) == 1


def test_the_profiler_starts_before_the_first_capture_only() -> None:
    counts, started = GraphCounts(Gate()), []
    counts.before_first = lambda: started.append(True)
    with counts.on(Graph):
        capture()
        capture()
    assert started == [True]


@pytest.mark.parametrize("kind", [Graph, Named])
def test_the_type_is_left_as_it_was(kind: type[Graph]) -> None:
    before, of_base = dict(vars(kind)), dict(vars(Graph))
    with GraphCounts(Gate()).on(kind):
        assert kind.replay.__name__ == "replay" and dict(vars(kind)) != before
    assert dict(vars(kind)) == before
    assert dict(vars(Graph)) == of_base


def test_what_the_program_puts_over_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "replay", Graph.replay)  # put back after the test
    with GraphCounts(Gate()).on(Graph):
        theirs = lambda graph: "theirs"  # noqa: E731
        Graph.replay = theirs  # type: ignore[method-assign, assignment]
    assert Graph.replay is theirs


def test_replays_of_several_threads_are_all_counted(counts: GraphCounts) -> None:
    graph = capture()
    threads = [
        threading.Thread(target=lambda: [graph.replay() for _ in range(20_000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.read()[0].replays == 80_000


def test_graphs_of_the_emulated_device_are_counted() -> None:
    counts = GraphCounts(Gate())
    with EmulatedDevice(), counts.on(torch.cuda.CUDAGraph):
        data = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = data * 2
        data.fill_(3)
        graph.replay()
        assert doubled.tolist() == [6.0] * 4
    (line,) = counts.read()
    assert (line.captures, line.replays) == (1, 1)
    assert line.location is not None and line.location.file == __file__
