"""Two traces of one program: what became faster and slower, new and gone."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from graphdoctor.cli import main
from graphdoctor.reporters import trace_html, traces_page
from graphdoctor.reporters.look import Look
from graphdoctor.trace.explain.before_after import EVERY_ROW, compare_traces
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.figures import time_text
from graphdoctor.values.trace import TraceComparison, TraceReport
from tests.support.parsed import Parsed
from tests.support.schemas import schema_of
from tests.support.traces import TraceBuilder


def program(kernels: dict[str, float], *, host: float = 10.0, load: float = 0.0) -> TraceBuilder:
    """4 steps of 20 rounds over the kernels, launched `host` us apart, after a load of data."""
    builder, moment = TraceBuilder(), 1000.0
    for step in range(4):
        begin = moment
        if load:
            builder.annotation("enumerate(DataLoader)#__next__", moment, load)
            moment += load
        device = 0.0
        for _ in range(20):
            for name, length in kernels.items():
                builder.operator("aten::mm", moment, host - 1)
                start = max(moment + 6, device + 1)
                builder.kernel(
                    builder.call("cudaLaunchKernel", moment + 2, 3), start, length, name=name
                )
                moment, device = moment + host, start + length
        builder.step(step, begin, moment - begin)
        moment = max(moment, device)
    return builder


def report(builder: TraceBuilder, name: str) -> TraceReport:
    return explain_trace(builder.trace(), Path(name), TraceOptions(rows=EVERY_ROW))


def compared(before: TraceBuilder, after: TraceBuilder) -> TraceComparison:
    return compare_traces(report(before, "before.json"), report(after, "after.json"))


def test_a_slower_kernel_is_the_change() -> None:
    found = compared(program({"gemm": 50, "relu": 20}), program({"gemm": 75, "relu": 20}))
    (change,) = [change for change in found.changes if change.what == "kernel"]
    assert (change.name, change.before_us, change.after_us) == ("gemm", 1_000, 1_500)
    assert "slower than before" in found.sentence
    assert "Most of it: gemm, 1 ms before and 1.5 ms now" in found.sentence
    assert (found.kernels_new, found.kernels_gone) == ((), ())


def test_the_largest_of_many_changes_is_not_said_to_be_most_of_it() -> None:
    before = {name: 50.0 for name in ("gemm", "relu", "norm", "add")}
    after = {name: 75.0 for name in before} | {"gemm": 80.0}
    found = compared(program(before), program(after))
    assert "The largest part of it: gemm, 1 ms before and 1.6 ms now" in found.sentence


def test_the_page_tells_kernels_apart_that_begin_alike() -> None:
    name = "void at::native::(anonymous namespace)::split_embedding_backward_rowwise_adagrad_kernel<float, float, {}>"
    found = compared(program({name.format("2ul"): 50}), program({name.format("5ul"): 80}))
    page = " ".join(traces_page.comparison_page(found, Look()).split())
    assert "float, 2ul>: gone" in page
    assert "float, 5ul>: new" in page


def test_kernels_that_are_new_and_gone_are_told() -> None:
    found = compared(program({"mul": 50, "add": 40}), program({"fused": 50}))
    assert (found.kernels_new, found.kernels_gone) == (("fused",), ("add", "mul"))
    assert {change.name: change.after_us for change in found.changes if change.what == "kernel"} == {
        "mul": 0, "add": 0, "fused": 1_000,
    }  # fmt: skip
    assert "faster" in found.sentence


def test_the_cause_of_less_idle_time_is_named() -> None:
    found = compared(program({"gemm": 50}, load=5_000), program({"gemm": 50}))
    (change,) = [
        change for change in found.changes if change.what == "idle" and "data" in change.name
    ]
    assert change.after_us == 0
    assert change.before_us == pytest.approx(5_000 * 3 / 4, rel=0.1)
    assert "idles" in found.sentence
    assert "data loading" in found.sentence


def test_the_same_run_twice_is_said_to_be_as_fast() -> None:
    found = compared(program({"gemm": 50}), program({"gemm": 50.5}))
    assert "as long as before" in found.sentence
    assert found.changes == ()


def test_the_command_takes_a_second_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = str(program({"gemm": 50}).write(tmp_path / "before.json"))
    after = str(program({"gemm": 25}).write(tmp_path / "after.json"))
    assert main(["trace", before, after]) == 0
    out = capsys.readouterr().out
    assert out.startswith("BEFORE AND AFTER\nA step is 1.")
    assert main(["trace", before, after, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema_of("trace"))
    assert main(["trace", before, after, "--json", after]) == 2
    assert main(["trace", before, str(tmp_path)]) == 2
    assert "two trace files can be compared" in capsys.readouterr().err
    assert main(["trace", before, after, "--wall-ms", "3"]) == 2


def with_kernel(device_us: float, step_us: float = 10_000.0, name: str = "gemm") -> TraceReport:
    """A report of one step of so long, in which one kernel is all that takes time."""
    base = report(program({"gemm": 50}), "t.json")
    cost = replace(base.work.kernels[0], name=name, device_us=device_us)
    return replace(
        base,
        steps_counted=2,
        span_ns=int(step_us * 2_000),
        device_busy_ns=int(device_us * 2_000),
        device_busy_share=device_us / step_us,
        prediction=None,
        work=replace(base.work, kernels=(cost,)),
        operators=(),
        lines=(),
        gap_causes=(),
    )


@pytest.mark.parametrize(
    ("before_us", "after_us", "is_told"),
    [
        (970.0, 1_000.0, False),  # three in a hundred of the longer one
        (969.0, 1_000.0, True),
        (1_000.0, 969.0, True),
        (10.0, 29.9, False),  # less than two thousandths of a step
        (10.0, 30.0, True),
        (0.0, 20.0, True),
    ],
)
def test_a_change_is_told_that_two_runs_of_one_program_do_not_have(
    before_us: float, after_us: float, is_told: bool
) -> None:
    found = compare_traces(with_kernel(before_us), with_kernel(after_us))
    told = [(one.what, one.name, one.before_us, one.after_us) for one in found.changes]
    assert told == ([("kernel", "gemm", before_us, after_us)] if is_told else [])


@pytest.mark.parametrize(
    ("before_us", "after_us", "said"),
    [
        (1_000, 1_030, "A step takes as long as before as profiled (1 ms, now 1.03 ms)."),
        (1_000, 1_040, "A step is 1.04x slower than before as profiled: 1 ms, now 1.04 ms."),
        (1_000, 500, "A step is 2.00x faster than before as profiled: 1 ms, now 0.5 ms."),
    ],
)
def test_a_step_is_faster_or_slower_by_more_than_three_in_a_hundred(
    before_us: float, after_us: float, said: str
) -> None:
    before, after = (with_kernel(100.0, step_us=step) for step in (before_us, after_us))
    assert compare_traces(before, after).sentence.startswith(said)


def test_the_sentence_tells_work_from_idling_and_what_went_the_same_way() -> None:
    slower = compare_traces(with_kernel(4_000.0), with_kernel(6_000.0, step_us=12_500.0))
    assert slower.sentence == (
        "A step is 1.25x slower than before as profiled: 10 ms, now 12.5 ms. The device works 2 ms longer and idles"
        " 0.5 ms longer. Most of it: gemm, 4 ms before and 6 ms now."
    )
    idler = compare_traces(with_kernel(6_000.0), with_kernel(4_000.0, step_us=12_500.0))
    assert idler.sentence.endswith("The device works 2 ms less and idles 4.5 ms longer.")


def test_the_largest_change_comes_first_in_either_direction() -> None:
    one, other = with_kernel(100.0), with_kernel(100.0)
    costs = {"up": (100.0, 400.0), "down": (900.0, 100.0), "new": (0.0, 500.0)}
    sides = [
        replace(
            side,
            work=replace(
                side.work,
                kernels=tuple(
                    replace(side.work.kernels[0], name=name, device_us=pair[place])
                    for name, pair in costs.items()
                    if pair[place]
                ),
            ),
        )
        for place, side in enumerate((one, other))
    ]
    assert [change.name for change in compare_traces(*sides).changes] == ["down", "new", "up"]


def graphed(kernels: int, *, steps: int = 4) -> TraceBuilder:
    """The same kernels of 5 us in one graph a step, which the device works through without a pause."""
    builder, device = TraceBuilder(), 1000.0
    for step in range(steps):
        begin = device
        call = builder.call("cudaGraphLaunch", begin - 20, 8)
        for node in range(kernels):
            builder.kernel(
                call, device, 5 if node else 9, name="mul" if node else "copy of the input"
            )
            device += 5 if node else 9
        builder.step(step, begin - 25, 15)
    return builder


def test_the_profilers_slowness_is_taken_out_of_both_traces() -> None:
    """A step of 100 launches, 20 us apart, takes 2 ms as profiled; the profiler makes 1.7 times as much of it."""
    eager = program({"mul": 5, "add": 5}, host=20.0)
    found = compared(eager, graphed(40))
    assert found.without_profiler
    assert found.ratio is not None
    profiled = found.before.step_us / found.after.step_us
    assert found.ratio.high < profiled
    assert found.ratio.mid < 0.8 * profiled
    assert f"(as profiled {profiled:.2f}x)" in found.sentence
    assert "CUDA graphs now replay 40 of 40 device events a step, 0 before." in found.sentence


@pytest.mark.parametrize("host", [20.0, 3.0])
def test_the_terms_sum_to_the_step_before_and_after(host: float) -> None:
    found = compared(program({"mul": 5, "add": 5}, host=host), graphed(40))
    assert found.ratio is not None
    before, after = (
        sum(times)
        for times in zip(*((one.before_us, one.after_us) for one in found.terms), strict=True)
    )
    assert before / after == pytest.approx(found.ratio.mid)
    assert after == pytest.approx(found.after.step_us, rel=0.02)
    parts = {term.name: (term.before_us, term.after_us) for term in found.terms}
    assert parts["kernels in both traces"] == pytest.approx((20 * 5, 39 * 5))
    assert parts["kernels in one trace only"] == pytest.approx((20 * 5, 9))
    page = " ".join(traces_page.comparison_page(found, Look(width=200)).split())
    assert "without the profiler; the terms sum to the step" in page
    assert f"the step: {before:,.1f} us to {after:,.1f} us" in page
    html = " ".join(Parsed(trace_html.render(found, Look())).text.split())
    assert "without the profiler; the terms sum to the step" in html
    assert f"the step{time_text(before)}{time_text(after)}" in html


def test_without_a_prediction_the_step_is_compared_as_profiled() -> None:
    found = compare_traces(with_kernel(4_000.0), with_kernel(6_000.0, step_us=12_500.0))
    assert not found.without_profiler
    assert sum(term.before_us for term in found.terms) == pytest.approx(10_000)
    assert sum(term.after_us for term in found.terms) == pytest.approx(12_500)
