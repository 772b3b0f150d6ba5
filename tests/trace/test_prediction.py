"""What is predicted of a step without the profiler, and when nothing is."""

from __future__ import annotations

import pytest

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError
from tests.support.traces import TraceBuilder, launch_bound
from tests.trace.test_activity import explained, stepping


def loading(each_ms: float = 40.0) -> TraceBuilder:
    builder, begins = stepping(before=each_ms * 1000)
    for begin in begins:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        builder.annotation(name, begin, each_ms * 1000)
        builder.call("cudaStreamSynchronize", begin - 40, 20)
    return builder


def test_a_loader_takes_as_long_without_the_profiler() -> None:
    """There is nothing inside of it that the profiler could slow."""
    predicted = explained(loading()).prediction
    assert predicted is not None
    loader = 3 * 40_000 / 4  # before the first kernel of the first step nothing is counted
    assert predicted.eager_us.low > loader
    assert predicted.without_syncs_us.low > loader
    assert predicted.profiler_factor.mid == pytest.approx(1.7)


@pytest.mark.parametrize(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "scipy/ndimage/_interpolation.py(739): zoom",
    ],
)
def test_not_even_the_best_graph_spares_what_makes_the_inputs(name: str) -> None:
    builder, begins = stepping(before=40_000)
    for begin in begins:
        builder.annotation(name, begin, 40_000)
    predicted = explained(builder).prediction
    assert predicted is not None
    loader = 3 * 40_000 / 4  # before the first kernel of the first step nothing is counted
    assert predicted.graph_us.low > 0.95 * loader
    assert predicted.speedup.high < 1.1


@pytest.mark.parametrize("name", ["my own work", "logging/__init__.py(1517): debug"])
def test_a_pause_that_may_lie_inside_of_the_model_may_go_at_best(name: str) -> None:
    builder, begins = stepping(before=40_000)
    for begin in begins:
        builder.annotation(name, begin, 40_000)
    predicted = explained(builder).prediction
    assert predicted is not None
    assert predicted.graph_us.low < 10_000 < predicted.graph_us.mid


def test_many_small_operators_are_faster_without_the_profiler() -> None:
    profiled = launch_bound(200, steps=4)
    found = explained(profiled).prediction
    assert found is not None
    assert found.eager_us.mid == pytest.approx(2_000 / 1.7, rel=0.02)


def test_a_wall_time_of_another_step_is_refused_with_the_reason() -> None:
    builder = launch_bound(200, steps=4)  # busy 0.4 ms of 2 ms
    with pytest.raises(UsageError, match=r"--wall-ms 0\.3 is less than the 0\.4 ms .* busy"):
        explained(builder, wall_us=300.0)
    with pytest.raises(UsageError, match=r"--wall-ms 20 is far more than the 2 ms"):
        explained(builder, wall_us=20_000.0)
    found = explained(builder, wall_us=1_900.0)
    assert found.confidence == "high"


@pytest.mark.parametrize(
    ("wall_us", "is_refused"), [(360.0, False), (359.9, True), (3_000.0, False), (3_000.1, True)]
)
def test_a_wall_time_may_be_a_tenth_below_the_busy_time_and_half_above_the_profiled_one(
    wall_us: float, is_refused: bool
) -> None:
    builder = launch_bound(200, steps=4)
    if is_refused:
        with pytest.raises(UsageError, match="not the time of the same step"):
            explained(builder, wall_us=wall_us)
        return
    predicted = explained(builder, wall_us=wall_us).prediction
    assert predicted is not None
    assert predicted.eager_us.mid == wall_us


@pytest.mark.parametrize(
    ("wall_us", "confidence"), [(1_500, "high"), (2_150, "high"), (2_500, "medium")]
)
def test_a_step_that_is_slower_without_the_profiler_is_not_taken_with_high_confidence(
    wall_us: float, confidence: str
) -> None:
    found = explained(launch_bound(200, steps=4), wall_us=wall_us)
    (doubt,) = (one for one in found.doubts if one.kind == "profiler-inflation")
    assert (found.confidence, doubt.corrected) == (confidence, confidence == "high")
    assert ("may not be of the same step" in doubt.text) == (confidence == "medium")


@pytest.mark.parametrize(
    ("cold_us", "sentence"),
    [(0.0, "off their time in the trace, more than 15%"), (20_000.0, "Cold starts take most")],
)
def test_nothing_is_predicted_where_the_simulation_is_off(cold_us: float, sentence: str) -> None:
    """Kernels of a second thread that ran at the same time cannot be laid on one lane of the host."""
    builder = TraceBuilder()
    for step in range(3):
        begin = step * 1000.0 + (cold_us if step == 2 else 0.0)
        builder.step(step, begin, 1000 + (cold_us if step == 1 else 0.0))
        if step == 1 and cold_us:
            cold = builder.call("cudaLaunchKernel", begin + 960, cold_us)
            builder.kernel(cold, begin + 970 + cold_us, 4, name="first of its kind")
        for place in range(10):
            builder.launch((begin + place * 10, 5), (begin + place * 10 + 8, 4))
        # The graph of an earlier process runs on, and the launch is logged long after its kernel.
        builder.kernel(builder.call("cudaLaunchKernel", begin + 950, 5), begin + 300, 10)
    found = explained(builder)
    assert found.prediction is None
    assert sentence in found.no_prediction
    assert "x (" not in found.reason
    assert "not predicted" in trace_page.render(found, Look())
