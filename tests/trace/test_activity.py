"""What the host did in each gap: by place, by kind of work, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.trace import parse_trace
from graphdoctor.trace.explain.gap_causes import activity, known_work
from graphdoctor.trace.explain.gaps import gaps, whole_span
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.trace import TraceReport, WorkKind
from tests.support.traces import TraceBuilder, launch_bound

FILE = Path("run.json")


def stepping(steps: int = 4, before: float = 40_000.0) -> tuple[TraceBuilder, list[float]]:
    """Steps of 20 kernels of 50 us, launched ahead, after `before` us of something else."""
    builder, moment, begins = TraceBuilder(), 0.0, []
    for step in range(steps):
        begins.append(moment)
        start, device = moment + before, moment + before + 5
        for _ in range(20):
            builder.operator("aten::mm", start, 8)
            builder.launch((start + 2, 4), (max(device, start + 5), 50))
            start, device = start + 10, max(device, start + 5) + 51
        builder.step(step, moment, device - moment)
        moment = device
    return builder, begins


def explained(builder: TraceBuilder, **options: float) -> TraceReport:
    return explain_trace(builder.trace(), FILE, TraceOptions(**options))  # type: ignore[arg-type]


def test_a_loader_in_each_step_is_the_cause_and_no_launch() -> None:
    builder, begins = stepping()
    for begin in begins:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        builder.annotation(name, begin + 100, 39_800)
    found = explained(builder)
    assert found.verdict == "host-bound", found.reason
    assert "data loading" in found.reason
    assert "num_workers" in found.advice
    first = found.gap_causes[0]
    assert (first.kind, first.share > 0.98) == ("data-loading", True)
    assert first.idle_us == pytest.approx(3 * 39_800 / 4, rel=0.01)


def test_the_innermost_function_is_named_with_the_line_of_the_user() -> None:
    builder, begins = stepping()
    for begin in begins:
        builder.frame("train.py(10): train", begin, 39_900)
        builder.frame("transformers/models/x/image_processing_x.py(33): resize", begin + 10, 39_800)
        builder.frame("scipy/ndimage/_interpolation.py(739): zoom", begin + 20, 39_700)
        builder.frame("<built-in function zoom_shift>", begin + 30, 39_600)
    found = explained(builder)
    first = found.gap_causes[0]
    assert (first.kind, first.name) == ("preprocessing", "<built-in function zoom_shift>")
    assert first.location is not None
    assert (first.location.function, first.location.line) == ("zoom", 739)
    assert found.idle_kinds[0].kind == "preprocessing"
    assert "zoom" in found.reason
    assert found.longest_gaps[0].doing == "<built-in function zoom_shift>"
    page = trace_page.render(found, Look())
    assert "What the CPU did meanwhile" in page
    assert "scipy/ndimage/_interpolation.py:739" in page


def test_syncs_that_cost_nothing_are_not_blamed_for_a_pause_of_the_host() -> None:
    builder, begins = stepping()
    for begin in begins:
        builder.frame("train.py(10): prepare", begin, 39_900)
        builder.call("cudaStreamSynchronize", begin + 10, 20)
        builder.call("cudaStreamSynchronize", begin + 39_950, 5)
    found = explained(builder)
    assert found.verdict == "host-bound"
    assert "prepare" in found.reason
    assert "sync" not in found.reason


def test_another_threads_python_explains_a_thread_that_says_nothing() -> None:
    builder, begins = stepping()
    for begin in begins:
        builder.frame("train.py(10): train", begin - 60, 40_000)
        for place in range(30):
            builder.frame("metrics.py(4): crunch", begin + 100 + place * 1000, 900, thread=7)
    found = explained(builder)
    (cause,) = [cause for cause in found.gap_causes if cause.kind == "another-thread"]
    assert cause.location is not None
    assert cause.location.function == "crunch"
    assert cause.share > 0.9


def test_of_another_threads_functions_the_one_that_ran_in_the_middle_of_the_silence_is_named() -> (
    None
):
    builder, begins = stepping()
    for begin in begins:
        builder.frame("train.py(10): train", begin - 60, 40_000)
        builder.frame("metrics.py(2): read", begin + 50, 900, thread=7)
        builder.frame("metrics.py(4): crunch", begin + 1000, 36_000, thread=7)
        for place in range(3):
            builder.frame("metrics.py(9): tell", begin + 37_100 + place * 900, 800, thread=7)
    causes = [one for one in explained(builder).gap_causes if one.kind == "another-thread"]
    assert [one.location and one.location.function for one in causes] == ["crunch"]


def test_a_thread_inside_of_c_code_is_not_said_to_wait_for_another() -> None:
    builder, begins = stepping()
    for begin in begins:
        builder.frame("<built-in function zoom_shift>", begin - 60, 40_000)
        for place in range(30):
            builder.frame("metrics.py(4): crunch", begin + 100 + place * 1000, 900, thread=7)
    assert not [cause for cause in explained(builder).gap_causes if cause.kind == "another-thread"]


def test_what_nobody_recorded_is_said_to_be_so() -> None:
    builder, _ = stepping()
    first = explained(builder).gap_causes[0]
    assert (first.kind, first.name, first.location) == ("unrecorded", "", None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaMalloc", "allocation"),
        ("hipFree", "allocation"),
        ("cudaGraphInstantiateWithFlags", "graph-instantiation"),
        ("hipStreamBeginCapture", "graph-instantiation"),
        ("<built-in function collect>", "garbage-collection"),
        ("torch/utils/data/dataloader.py(703): __next__", "data-loading"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("torch/optim/adam.py(10): step", "optimizer"),
        ("torch/_inductor/compile_fx.py(9): compile_fx", "compilation"),
        ("cuModuleLoadData", "warm-up"),
        ("Lazy Function Loading", "warm-up"),
        ("nvrtcCompileProgram", "compilation"),
        ("logging/__init__.py(1): emit", "logging"),
        ("torch/serialization.py(4): save", "files"),
        ("<built-in function sleep>", "sleep"),
        ("cudaStreamSynchronize", "sync"),
        ("torch/_inductor/output_code.py(9): __call__", None),
        ("torch/fx/graph_module.py(3): call_wrapped", None),
        ("cudaLaunchKernel", None),
        ("aten::mm", None),
        ("model.py(3): forward", None),
    ],
)
def test_usual_work_is_known_by_its_name(name: str, kind: WorkKind | None) -> None:
    assert known_work(name) == kind


def test_a_launch_bound_step_says_where_most_of_its_time_goes() -> None:
    found = explained(launch_bound(100))
    assert found.verdict == "launch-bound"
    assert "38% of the idle time is in aten::mul." in found.reason


def test_time_goes_to_what_is_innermost_and_known_work_to_what_it_lies_in() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.frame("train.py(1): step", 15, 100)
    builder.frame("torch/optim/adam.py(2): step", 30, 60)
    builder.operator("aten::add", 40, 20)
    builder.call("cudaMalloc", 45, 5)
    builder.launch((100, 5), (107, 10))
    found = explained(builder)
    line = found.gap_causes[0].location
    assert line is not None
    idle = found.idle_ns / 1e3
    by_kind = {kind.kind: kind.idle_us for kind in found.idle_kinds}
    assert by_kind == {"ordinary": 20.0, "optimizer": 55.0, "allocation": 5.0}
    assert found.idle_kinds[0].share == pytest.approx(55 / idle)
    assert [cause.name for cause in found.gap_causes if cause.kind == "optimizer"] == ["step"]


@st.composite
def crossing(draw: st.DrawFn) -> TraceBuilder:
    """Spans that lie in each other, apart, or across each other."""
    builder = TraceBuilder()
    builder.launch((0, 0.001), (0.002, 0.008))
    builder.launch((0.3, 0.001), (0.302, 0.01))
    moments = st.integers(0, 320)
    for _ in range(draw(st.integers(0, 10))):
        start, length = draw(moments) / 1000, draw(st.integers(0, 200)) / 1000
        add = draw(st.sampled_from((builder.operator, builder.annotation)))
        add(draw(st.sampled_from("abc")), start, length)
    return builder


@given(crossing())
def test_every_nanosecond_of_waiting_has_one_doer_however_spans_cross(sample: TraceBuilder) -> None:
    trace = sample.trace()
    found = activity(trace, gaps(trace, 0), [whole_span(trace, 0)])
    waiting = found.waiting
    total = int((waiting.high_ns - waiting.low_ns).sum())
    assert found.own_ns.min(initial=0) >= 0
    assert int(found.own_ns.sum()) + found.unrecorded_ns == total
    spans = list(zip(found.spans.start_ns.tolist(), found.spans.end_ns.tolist(), strict=True))
    covered = sum(
        any(low <= at < high for low, high in spans)
        for start, end in zip(waiting.low_ns.tolist(), waiting.high_ns.tolist(), strict=True)
        for at in range(start, end)
    )
    assert found.unrecorded_ns == total - covered


def test_what_is_known_by_name_inside_of_a_long_pause_counts_once() -> None:
    """A pause of 40 ms whose middle is Python nobody knows, with a loader before it and a cudaMalloc after it."""
    builder, begins = stepping()
    for begin in begins:
        builder.frame("train.py(10): train", begin, 39_900)
        builder.annotation("enumerate(DataLoader)#next", begin + 100, 15_000)
        builder.call("cudaMalloc", begin + 30_000, 9_000)
    found = explained(builder)
    assert found.verdict == "host-bound"
    shares = {kind.kind: kind.share for kind in found.idle_kinds}
    assert shares["data-loading"] + shares["allocation"] == pytest.approx(24 / 40, abs=0.02)
    said = int(found.reason.split("of the time, ")[1].split("%")[0])
    assert 95 <= said <= 100, found.reason


def test_a_gpu_without_a_profile_is_called_unknown_and_its_costs_are_those_of_any() -> None:
    builder = launch_bound(40, steps=4)
    document = builder.document()
    (known,) = (dict(one, name="NVIDIA H100") for one in document["deviceProperties"])
    reports = [
        explain_trace(
            parse_trace(json.dumps({**document, "deviceProperties": gpus}).encode()), FILE
        )
        for gpus in ([], [known])
    ]
    unknown, of_h100 = reports
    assert [doubt.kind for doubt in unknown.doubts if "names no GPU" in doubt.text] == [
        "unknown-gpu"
    ]
    assert "unknown GPU, device 0" in trace_page.render(unknown, Look())
    assert unknown.prediction is not None and of_h100.prediction is not None
    wide, narrow = unknown.prediction.speedup, of_h100.prediction.speedup
    assert wide.low < narrow.low
    assert wide.high >= narrow.high
    assert all("H100" not in term.source for term in unknown.prediction.terms)
