"""Graphs in a trace: made anew in steps, replayed, by whom and with which kernels."""

from __future__ import annotations

import pytest

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.values.trace import GraphUse, TraceReport
from tests.support.traces import TraceBuilder, launch_bound
from tests.trace.test_activity import explained


def making(*, in_steps: tuple[int, ...], steps: int = 3) -> TraceReport:
    builder = launch_bound(20, steps=steps)
    for step in range(steps):
        begin = 1000.0 + step * 200
        builder.frame("serve.py(8): warm", begin + 80, 40)
        if step in in_steps:
            builder.call("cudaStreamBeginCapture", begin + 81, 2)
            builder.call("cudaGraphInstantiateWithFlags", begin + 90, 25)
        graph = builder.call("cudaGraphLaunch", begin + 121, 3)
        for node in range(4):
            builder.kernel(graph, begin + 150 + node, 0.5)
    return explained(builder)


def graphs_of(report: TraceReport) -> GraphUse:
    assert report.graphs is not None
    return report.graphs


def test_graphs_that_are_made_in_every_step_are_the_finding_with_their_line() -> None:
    report = making(in_steps=(0, 1, 2))
    found = graphs_of(report)
    assert (found.captures, found.instantiations, found.instantiation_us) == (1, 1, 25)
    assert (found.launches, found.kernels, found.made_in_steps) == (1, 4, 3)
    assert found.location is not None
    assert found.location.function == "warm"
    page = " ".join(trace_page.render(report, Look()).split())
    assert (
        "All 3 steps capture CUDA graphs: 3 CUDA graphs, 25 µs a step in instantiation at" in page
    )
    assert "1 capture and 1 instantiation (25 µs) at serve.py:8 (warm)" in page
    assert page.index("Capture before the steps") < page.index("Time of the device")


def test_a_graph_that_is_made_once_is_told_from_one_in_every_step() -> None:
    text = graphs_of(making(in_steps=(1,))).finding
    assert text.startswith("1 of the 3 steps captures 1 CUDA graph")
    assert "new shape" in text
    assert graphs_of(making(in_steps=())).finding == ""
    assert "Record more steps" in graphs_of(making(in_steps=(0,), steps=1)).finding
    assert explained(launch_bound(20)).graphs is None


def test_a_trace_of_a_capture_without_steps_is_no_finding() -> None:
    builder = TraceBuilder()
    builder.launch((1000, 3), (1010, 5))
    builder.call("cudaStreamBeginCapture", 1020, 2)
    found = graphs_of(explained(builder))
    assert (found.captures, found.finding) == (1, "")


@pytest.mark.parametrize(
    ("frame", "maker"),
    [
        ("vllm/compilation/cuda_graph.py(208): __call__", "vLLM"),
        ("/app/sglang/python/sglang/srt/model_executor/cuda_graph_runner.py(9): replay", "SGLang"),
        ("torch/_inductor/cudagraph_trees.py(1219): run_graph", "torch.compile"),
        ("model.py(7): forward", "torch.cuda.graphs"),
    ],
)
def test_who_replays_is_told_by_what_is_around_the_launch(frame: str, maker: str) -> None:
    builder = TraceBuilder()
    builder.frame(frame, 1040, 40)
    builder.frame("torch/cuda/graphs.py(139): replay", 1045, 30)
    graph = builder.call("cudaGraphLaunch", 1050, 5)
    builder.kernel(graph, 1060, 5, name="gemm")
    (found,) = graphs_of(explained(builder)).replays
    assert found.maker == maker


def test_replays_of_one_graph_are_known_again_by_their_kernels_or_its_id() -> None:
    builder = TraceBuilder()
    for place, names in enumerate((("a", "b"), ("b", "a"), ("a", "c"), ())):
        graph = builder.call("cudaGraphLaunch", 1000 + place * 100, 5)
        for node, name in enumerate(names):
            builder.kernel(graph, 1010 + place * 100 + node * 10, 5, name=name)
    found = graphs_of(explained(builder)).replays
    assert [(one.launches, one.kernels, one.device_us, one.graph_id) for one in found] == [
        (2, 2, 20, 0),
        (1, 2, 10, 0),
        (1, 0, 0, 0),
    ]
    assert found[1].longest_kernels == ("a", "c")
    for event in builder.events:
        if event["cat"] == "kernel":
            event["args"]["graph id"] = 7
    assert [one.launches for one in graphs_of(explained(builder)).replays] == [3, 1]


def test_replays_are_told_by_step_with_what_one_launch_takes_and_its_longest_kernels() -> None:
    builder = TraceBuilder()
    for step, launch_us in enumerate((4, 8)):
        begin = 1000.0 + step * 1000
        builder.step(step, begin, 900)
        builder.frame("serve.py(8): decode", begin + 5, 60)
        graph = builder.call("cudaGraphLaunch", begin + 10, launch_us)
        for node, (name, length) in enumerate((("a", 5), ("b", 9), ("c", 1), ("d", 7), ("b", 2))):
            builder.kernel(graph, begin + 30 + node * 20, length, name=name)
        small = builder.call("cudaGraphLaunch", begin + 200, 3)
        builder.kernel(small, begin + 210, 2, name="e")
    first, second = graphs_of(explained(builder)).replays
    assert (first.launches, first.kernels, first.launch_us, first.device_us) == (1, 5, 6, 24)
    assert first.longest_kernels == ("b", "d", "a")
    assert first.location is not None and first.location.line == 8
    assert (second.launches, second.kernels, second.launch_us, second.device_us) == (1, 1, 3, 2)
    assert (second.location, second.maker) == (None, "")


@pytest.mark.parametrize(
    ("in_steps", "steps", "words"),
    [
        ((0,), 1, "The one recorded step captures 1 CUDA graph, 25 µs a step"),
        ((0, 2), 3, "2 of the 3 steps capture 2 CUDA graphs, 16.7 µs a step"),
        ((0, 1), 2, "All 2 steps capture CUDA graphs: 2 CUDA graphs, 25 µs a step"),
    ],
)
def test_the_finding_says_in_how_many_steps_graphs_are_made_and_what_that_costs(
    in_steps: tuple[int, ...], steps: int, words: str
) -> None:
    found = graphs_of(making(in_steps=in_steps, steps=steps))
    assert found.finding.startswith(words)
    assert found.made_in_steps == len(in_steps)
    assert found.instantiations == found.captures == len(in_steps) / steps
