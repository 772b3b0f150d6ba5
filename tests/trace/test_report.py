"""Explaining traces of known truth: shares, steps, gaps, verdicts, predictions, corrections."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pytest

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace import parse_trace
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.errors import UsageError
from graphdoctor.values.trace import TraceReport
from tests.support.regimes import REGIMES, Regime, RegimeTrace, Truth
from tests.support.schemas import schema_of
from tests.support.traces import TraceBuilder, launch_bound

FILE = Path("run.pt.trace.json")


def explained(builder: TraceBuilder, **options: float) -> TraceReport:
    return explain_trace(builder.trace(), FILE, TraceOptions(**options))  # type: ignore[arg-type]


def regime(name: Regime, *, kernels: int = 300, steps: int = 4) -> tuple[TraceReport, Truth]:
    text = io.StringIO()
    truth = RegimeTrace(name, kernels=kernels, steps=steps).write(text)
    return explain_trace(parse_trace(text.getvalue().encode()), FILE), truth


@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_is_explained_as_it_was_made(name: Regime) -> None:
    found, truth = regime(name)
    assert found.idle_share == pytest.approx(truth.idle / truth.span, abs=0.001)
    assert (found.span_ns, found.device_busy_ns) == (truth.span, truth.busy)
    assert found.launch_bound_ns == truth.launch_bound
    assert found.sync_wait_ns == truth.sync_wait
    assert found.device_gap_ns == truth.device_gap
    assert (found.joined_share, found.unattributed_ns) == (1.0, 0)
    assert [step.device_events for step in found.steps] == truth.steps
    assert found.kernels == truth.kernels


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("launch-bound", "launch-bound"),
        ("mixed", "mixed"),
        ("gpu-bound", "gpu-bound"),
        ("graph", "gpu-bound"),
    ],
)
def test_the_verdict_is_that_of_the_regime(name: Regime, verdict: str) -> None:
    found, _ = regime(name)
    assert found.verdict == verdict, found.reason


def test_replaying_the_trace_gives_the_trace_again() -> None:
    for name in REGIMES:
        found, _ = regime(name)
        assert found.prediction is not None
        assert abs(found.prediction.simulation_error) < 0.01, name


def test_a_launch_bound_step_is_promised_about_what_its_kernels_take() -> None:
    found, truth = regime("launch-bound")
    predicted = found.prediction
    assert predicted is not None
    busy_us = truth.busy / 1e3 / 4
    assert predicted.device_busy_us == pytest.approx(busy_us)
    assert busy_us < predicted.graph_us.low < predicted.graph_us.mid < 1.6 * busy_us
    assert predicted.speedup.low > 1
    assert {term.name for term in predicted.terms} >= {
        "device busy",
        "gaps between graph nodes",
        "launches of graphs",
        "copies of inputs from the host",
        "host time that stays eager",
    }


def test_a_busy_device_is_promised_nothing() -> None:
    found, _ = regime("gpu-bound")
    assert found.prediction is not None
    assert found.prediction.speedup.high < 1.1
    assert "A graph brings 1.0" in found.reason


def test_captured_graphs_are_known_and_not_captured_again() -> None:
    found, _ = regime("graph")
    assert found.graph_kernel_share == 1.0
    assert found.graph_gap_ns > 0
    assert found.prediction is not None
    assert found.prediction.launches_captured == 0
    assert any(doubt.kind == "graph-nodes-traced" for doubt in found.doubts)


def syncing(steps: int = 5) -> TraceBuilder:
    """Large kernels, launched ahead of time, but for the read at the end of each step."""
    builder, host, device = TraceBuilder(), 0.0, 0.0
    for step in range(steps):
        begin = host
        for _ in range(10):
            builder.launch((host, 2), (max(host + 5, device + 1), 20))
            device = max(host + 5, device + 1) + 20
            host += 6
        builder.frame("train.py(7): report_loss", host - 0.5, 3000)
        builder.operator("aten::item", host, device + 60 - host)
        builder.operator("aten::_local_scalar_dense", host + 0.1, device + 59 - host)
        builder.call("cudaStreamSynchronize", host + 1, device + 55 - host - 1)
        host = device + 60
        builder.step(step, begin, host - begin)
        host += 1
    return builder


def test_waits_are_named_with_their_operator_and_their_line() -> None:
    found = explained(syncing(), wall_us=330.0)
    (sync,) = found.syncs
    assert (sync.call, sync.operator, sync.count) == ("cudaStreamSynchronize", "aten::item", 1.0)
    assert sync.location is not None
    assert (sync.location.file, sync.location.line) == ("train.py", 7)
    latency = 7  # the host waits already, while the launch is on its way
    assert sync.device_idle_us == pytest.approx(55 * 4 / 5 + latency)
    assert found.sync_wait_ns == 4 * 55_000
    assert found.verdict == "sync-bound"
    assert "fix them first" in found.reason
    assert "train.py:7" in found.reason


def test_idle_time_in_a_blocked_call_is_that_of_the_device_whatever_it_waited_for() -> None:
    """As in sglang's decode step on MI300X: work is queued behind another stream, and the host is blocked."""
    builder = TraceBuilder()
    builder.launch((1_190, 5), (1_195, 10))
    builder.launch((1_200, 5), (6_000, 10))  # queued at once, held up by an event
    builder.operator("aten::copy_", 1_210, 4_795)
    builder.call("hipMemcpyWithStream", 1_215, 4_785)
    (sync,) = explained(builder).syncs
    assert sync.host_wait_us == 4_785
    assert sync.device_idle_us == 4_785


def test_a_known_wall_time_replaces_the_profilers_slowness() -> None:
    profiled = explained(launch_bound(200, steps=4))
    known = explained(launch_bound(200, steps=4), wall_us=600.0)
    assert profiled.prediction is not None
    assert known.prediction is not None
    assert known.prediction.eager_us.low == known.prediction.eager_us.high == 600.0
    assert known.prediction.launch_bound_share.mid == pytest.approx(200 / 600)
    assert (profiled.confidence, known.confidence) == ("medium", "high")
    assert profiled.idle_share == known.idle_share  # the trace's own stay as they are


def test_a_near_tie_is_mixed() -> None:
    found = explained(launch_bound(200, steps=4), wall_us=490.0)
    assert found.prediction is not None
    assert 0.1 < found.prediction.launch_bound_share.mid < 0.3
    assert found.verdict == "mixed"


def test_one_step_can_be_picked_and_a_missing_one_is_named() -> None:
    found = explained(launch_bound(20, steps=4), step=2)
    assert [step.name for step in found.steps] == ["ProfilerStep#2"]
    assert found.kernels == 20
    with pytest.raises(UsageError, match=r"no ProfilerStep#9 .* 0, 1, 2, 3"):
        explained(launch_bound(20, steps=4), step=9)


def test_steps_of_slightly_different_kernels_all_count() -> None:
    """The last has most kernels and is the only one that the host is ahead of: it is no majority."""
    builder, host, device = TraceBuilder(), 0.0, 0.0
    for step in range(10):
        begin, length = host, 1000.0 if step == 9 else 2.0
        for place in range(200 + step):
            builder.launch((host + 3, 3), (max(host + 7, device + 1), length))
            device, host = max(host + 7, device + 1) + length, host + 10
            builder.events[-1]["name"] = f"kernel{place % 20}"
        builder.step(step, begin, host - begin)
    found = explained(builder)
    assert (found.steps_counted, found.step_kinds) == (10, ())
    assert [step.device_events for step in found.steps] == [200 + step for step in range(10)]
    assert not any("others" in doubt.text for doubt in found.doubts)


def kinds(training: int = 4, evaluation: int = 2) -> TraceBuilder:
    """Training steps of 40 kernels that wait for the host, and others of 10 long kernels."""
    builder, host, device = TraceBuilder(), 1000.0, 0.0
    for step in range(training + evaluation):
        count, name, length = (40, "train", 2) if step < training else (10, "eval", 500)
        begin = host
        for place in range(count):
            builder.launch((host + 3, 3), (max(host + 7, device + 1), length))
            device, host = max(host + 7, device + 1) + length, host + 10
            builder.events[-1]["name"] = f"{name}{place % 8}"
        builder.step(step, begin, host - begin)
    return builder


def test_each_kind_of_step_has_its_own_figures() -> None:
    found = explained(kinds())
    assert found.steps_counted == 4
    train, evaluate = found.step_kinds
    assert (train.steps, train.most_events, train.counts) == (4, 40, True)
    assert (evaluate.steps, evaluate.fewest_events, evaluate.counts) == (2, 10, False)
    assert train.launch_bound_share > 0.6 > 0.1 > evaluate.launch_bound_share
    assert evaluate.device_busy_share > 0.9
    assert found.steps[4].left_out == (
        "it is of another kind: 10 device events, the others have 40"
    )
    page = trace_page.render(found, Look())
    assert "2 steps like ProfilerStep#4, 10 device events" in " ".join(page.split())


def test_a_slow_first_step_is_left_out() -> None:
    builder = launch_bound(20, steps=5)
    builder.launch((1150, 1), (1160, 1))
    assert explained(builder).steps_counted == 5
    slow = launch_bound(20, steps=4)
    for event in slow.events:
        if event["ts"] >= 1200:
            event["ts"] += 5000
    slow.events[0]["dur"] = 5200
    assert "warm-up" in explained(slow).steps[0].left_out


def without_annotations(builder: TraceBuilder) -> TraceBuilder:
    builder.events = [event for event in builder.events if event["cat"] != "user_annotation"]
    return builder


def test_steps_without_annotations_are_found_by_what_repeats() -> None:
    builder = without_annotations(launch_bound(10, steps=6))
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    for place, event in enumerate(kernels):
        event["name"] = f"kernel{place % 10}"
    found = explained(builder)
    assert found.step_basis == "repeating launches"
    assert (len(found.steps), found.steps[0].device_events) == (6, 10)


def test_equal_layers_between_other_kernels_are_no_steps() -> None:
    builder = without_annotations(launch_bound(100))
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    for place, event in enumerate(kernels):
        event["name"] = f"kernel{place % 9}" if place >= 5 else f"embedding{place}"
    found = explained(builder)
    assert (found.step_basis, len(found.steps)) == ("whole span", 1)


def test_lost_launches_make_it_impossible_to_tell() -> None:
    builder = TraceBuilder()
    for place in range(40):
        builder.kernel(1000 + place, place * 20.0, 5)
    found = explained(builder)
    assert (found.verdict, found.confidence) == ("cannot-tell", "low")
    assert found.unattributed_ns == found.idle_ns > 0
    assert found.prediction is None
    assert any(doubt.kind == "lost-launches" for doubt in found.doubts)


def test_launches_without_kernels_are_pointed_out() -> None:
    builder = launch_bound(50)
    for place in range(20):
        builder.call("cudaLaunchKernel", 1001 + place, 0.1)
    found = explained(builder)
    assert any(doubt.kind == "lost-kernels" for doubt in found.doubts)
    assert found.confidence == "low"


def test_a_graph_launch_without_kernels_makes_idle_time_unreliable() -> None:
    builder = launch_bound(50)
    builder.call("cudaGraphLaunch", 1001, 5)
    found = explained(builder)
    assert any(doubt.kind == "incomplete-graphs" for doubt in found.doubts)
    assert found.verdict == "cannot-tell"


def test_a_full_queue_is_no_work_of_the_host() -> None:
    builder = launch_bound(50)
    builder.overhead("Command Buffer Full", 1010, 3)
    (doubt,) = [doubt for doubt in explained(builder).doubts if doubt.kind == "queue-full"]
    assert doubt.corrected


def test_a_trace_of_the_cpu_says_what_to_record() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mul", 0, 5)
    with pytest.raises(UsageError, match=r"no GPU events .*ProfilerActivity\.CUDA"):
        explained(builder)


def test_every_device_is_explained_and_the_busiest_comes_first() -> None:
    builder = launch_bound(20)
    for place in range(5):
        builder.kernel(None, 1000 + place * 10, 4, device=1)
    found = explained(builder)
    assert [device.device for device in found.devices] == ["0", "1"]
    assert found.devices[1].device_busy_ns == 20_000


def test_json_follows_its_schema_and_the_parts_sum_to_the_span() -> None:
    for builder in (launch_bound(20, steps=3), syncing()):
        found = json.loads(written(explained(builder)))
        jsonschema.validate(found, schema_of("trace"))
        parts = ("device_busy", "launch_bound", "sync_wait", "device_gap", "unattributed")
        assert sum(found[f"{part}_ns"] for part in parts) == found["span_ns"]
        assert sum(found[f"{part}_share"] for part in parts) == pytest.approx(1)
        assert found["idle_share"] == pytest.approx(1 - found["device_busy_share"])
        gap = found["longest_gaps"][0]
        causes = ("host_ns", "launch_path_ns", "sync_wait_ns", "device_gap_ns", "unattributed_ns")
        assert sum(gap[cause] for cause in causes) == gap["length_ns"]


def test_the_page_says_all_of_it_and_obeys_no_name_in_the_trace() -> None:
    builder = syncing()
    for event in builder.events:
        if event["cat"] == "kernel":
            event["name"] = "\x1b[31mevil\n"
    page = trace_page.render(explained(builder), Look(show_all=True))
    for part in ("Sync wait", "aten::item", "train.py:7", "cudaLaunchKernel", "Term"):
        assert part in page
    assert "\x1b" not in page
