"""Where the time went -> the verdict, at its turning points."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphdoctor.trace import Lanes
from graphdoctor.trace.explain.gap_causes import Doings
from graphdoctor.trace.explain.verdict import Judgement, judge_trace
from graphdoctor.values.figures import Range
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import Doubt, GapCause, IdleKind, SyncCost, TracePrediction

LAUNCHING = Doings(kinds=(), causes=(), elsewhere_share=0.0)  # nothing but launching
SPAN = 100_000
PREDICTED = TracePrediction(
    wall_us=100.0,
    profiler_factor=Range(2, 2, 2),
    eager_us=Range(100, 100, 100),
    graph_us=Range(50, 50, 50),
    speedup=Range(1.5, 2, 2.5),
    without_syncs_us=Range(100, 100, 100),
    launch_bound_share=Range(0.5, 0.5, 0.5),
    device_busy_us=50.0,
    regions=1,
    launches_captured=10,
    syncs=0,
    simulation_error=0.0,
)


def lanes(**parts: int) -> Lanes:
    """Busy but for the parts; each kernel has its launch."""
    idle = sum(value for name, value in parts.items() if name != "in_graph_ns")
    return Lanes(busy_ns=SPAN - idle, events=10, launches=10, joined=10, **parts)


def share(value: float, **more: Any) -> TracePrediction:
    return replace(PREDICTED, launch_bound_share=Range(value, value, value), **more)


def judged(
    times: Lanes,
    predicted: TracePrediction | None,
    *doubts: str,
    syncs: tuple[SyncCost, ...] = (),
    did: Doings = LAUNCHING,
) -> Judgement:
    found = [Doubt(kind, "") for kind in doubts]
    return judge_trace(times, predicted, found, syncs, did)


@pytest.mark.parametrize(
    ("bound", "speedup", "waited", "verdict"),
    [
        (0.3, 1.15, 0, "launch-bound"),
        (0.29, 2.0, 0, "mixed"),
        (0.3, 1.14, 0, "mixed"),
        (0.1, 1.0, 0, "mixed"),
        (0.09, 1.0, 0, "gpu-bound"),
        (0.09, 1.0, 9_999, "gpu-bound"),
        (0.09, 1.0, 10_000, "mixed"),
    ],
)
def test_verdict_turns_at_shares_of_the_time(
    bound: float, speedup: float, waited: int, verdict: str
) -> None:
    predicted = share(bound, speedup=Range(1, speedup, 3))
    assert judged(lanes(sync_wait_ns=waited), predicted).verdict == verdict


def test_ends_that_say_different_things_are_mixed() -> None:
    wide = replace(PREDICTED, launch_bound_share=Range(0.2, 0.5, 0.6))
    assert judged(lanes(), wide).verdict == "mixed"
    assert judged(lanes(), PREDICTED).verdict == "launch-bound"


def test_without_a_wall_time_the_share_as_profiled_must_agree() -> None:
    unmeasured = replace(PREDICTED, wall_us=None)
    assert judged(lanes(host_ns=40_000), unmeasured).verdict == "launch-bound"
    assert judged(lanes(host_ns=20_000), unmeasured).verdict == "mixed"
    assert judged(lanes(host_ns=20_000), PREDICTED).verdict == "launch-bound"
    said = judged(lanes(host_ns=20_000), unmeasured).reason
    assert said.startswith(
        "Mixed: the GPU waits for the CPU for 50% of a step without the profiler (20% as profiled)."
    )
    assert judged(lanes(host_ns=20_000), share(0.2)).reason.startswith(
        "Mixed: the GPU waits for the CPU for 20% of a step."
    )


@pytest.mark.parametrize(
    ("busy", "waitless", "syncs", "verdict"),
    [
        (50, 74, 2, "sync-bound"),  # more than half of 50 us idle would go
        (50, 75, 2, "launch-bound"),
        (50, 74, 0, "launch-bound"),
        (89, 90, 2, "sync-bound"),
        (90, 91, 2, "launch-bound"),  # a tenth of the time is not worth it
    ],
)
def test_waits_are_the_cause_where_most_idle_time_goes_with_them(
    busy: float, waitless: float, syncs: float, verdict: str
) -> None:
    predicted = replace(
        PREDICTED,
        device_busy_us=busy,
        without_syncs_us=Range(waitless, waitless, waitless),
        syncs=syncs,
    )
    assert judged(lanes(), predicted).verdict == verdict


SYNC = SyncCost("cudaStreamSynchronize", "aten::item", Location("train.py", 7, "step"), 1, 5, 5)


def test_the_first_wait_is_named_with_its_line() -> None:
    predicted = replace(PREDICTED, without_syncs_us=Range(60, 60, 60), syncs=1.0)
    first = judged(lanes(), predicted, syncs=(SYNC,)).reason
    assert "waits for results 1 time a step" in first
    assert "80% of the idle time goes" in first
    assert "The first is aten::item (cudaStreamSynchronize) in step, train.py:7." in first
    bare = replace(SYNC, operator="", location=None)
    second = judged(lanes(), replace(predicted, syncs=2.0), syncs=(bare,)).reason
    assert "waits for results 2 times a step" in second
    assert "The first is cudaStreamSynchronize; record with with_stack=True" in second
    assert "The first" not in judged(lanes(), predicted).reason


def test_a_busy_gpu_is_told_how_little_a_graph_can_bring() -> None:
    predicted = share(0.01, speedup=Range(0.9, 0.95, 0.99), device_busy_us=97.0)
    said = judged(lanes(device_gap_ns=5_000), predicted)
    assert said.verdict == "gpu-bound"
    both = "The GPU is busy 95% of the time as profiled and 97% by the wall time given. A graph brings 1.00x at most."
    assert said.reason == both
    unmeasured = replace(predicted, wall_us=None)
    assert "97% without the profiler" in judged(lanes(device_gap_ns=5_000), unmeasured).reason
    one = judged(lanes(device_gap_ns=5_000), share(0.01, device_busy_us=9)).reason
    assert one.startswith("The GPU is busy 95% of the time. ")
    assert "busy 100% of the time. " in judged(lanes(), share(0.01, device_busy_us=120)).reason
    assert "2.50x" in judged(lanes(), share(0.01)).reason


def test_graphs_are_counted_where_one_is_not_enough() -> None:
    one = judged(lanes(), PREDICTED).reason
    assert "With one graph for the whole step: predicted speedup 2x (1.5x to 2.5x)." in one
    several = judged(lanes(), replace(PREDICTED, regions=3.0)).reason
    assert "With 3 graphs a step: predicted speedup" in several
    mean = judged(lanes(), replace(PREDICTED, regions=8.2)).reason
    assert "With about 8 graphs a step: predicted speedup" in mean
    ends = replace(PREDICTED, launch_bound_share=Range(0.4, 0.5, 0.6))
    assert judged(lanes(), ends).reason.startswith(
        "The GPU waits for the CPU for 50% (40% to 60%) of a step"
    )


def test_what_runs_in_graphs_already_needs_no_measurement_of_a_graph() -> None:
    times = lanes(device_gap_ns=1_000)
    said = judge_trace(times, None, (), (), LAUNCHING, graph_share=0.94)
    assert said.verdict == "gpu-bound"
    assert said.reason.endswith("CUDA graphs already run 94% of the kernels.")
    assert said.advice.startswith("Look at the kernels, and at what runs between the graphs")
    half = judge_trace(times, None, (), (), LAUNCHING, graph_share=0.5)
    assert half.advice.startswith("Measure the step with and without a graph")


def test_a_host_that_is_blocked_beside_queued_work_is_named() -> None:
    times = lanes(device_gap_ns=60_000)
    lost = [Doubt("idle-with-work-queued", "")]
    most = replace(SYNC, call="hipMemcpyWithStream", device_idle_us=31, host_wait_us=33)
    said = judge_trace(times, PREDICTED, lost, (SYNC, most), LAUNCHING).reason
    assert said.endswith(
        "the CPU is blocked for 33 µs a step in aten::item (hipMemcpyWithStream) in step, train.py:7."
    )
    assert "blocked" not in judge_trace(times, PREDICTED, lost, (SYNC,), LAUNCHING).reason


@pytest.mark.parametrize(
    ("times", "doubts", "words"),
    [
        (lanes(unattributed_ns=25_001), (), "25% of the time is idle before kernels"),
        (lanes(device_gap_ns=26_000), ("idle-with-work-queued",), "26% of the time it is idle"),
        (lanes(), ("incomplete-graphs",), "graph launches have no kernels"),
        (replace(lanes(), joined=0), (), "its kernels have no launches"),
    ],
)
def test_there_is_no_answer_where_too_much_is_unknown(
    times: Lanes, doubts: tuple[str, ...], words: str
) -> None:
    said = judged(times, PREDICTED, *doubts)
    assert (said.verdict, said.confidence) == ("cannot-tell", "low")
    assert words in said.reason


@pytest.mark.parametrize(
    ("times", "doubts"),
    [
        (lanes(unattributed_ns=25_000), ()),
        (lanes(device_gap_ns=26_000), ()),
        (lanes(device_gap_ns=25_000), ("idle-with-work-queued",)),
        (lanes(device_gap_ns=60_000, in_graph_ns=35_000), ("idle-with-work-queued",)),
    ],
)
def test_there_is_an_answer_where_little_is_unknown(times: Lanes, doubts: tuple[str, ...]) -> None:
    assert judged(times, PREDICTED, *doubts).verdict == "launch-bound"


@pytest.mark.parametrize(
    ("bound", "waited", "queued", "verdict"),
    [
        (0, 0, 9_999, "gpu-bound"),
        (0, 0, 10_000, "mixed"),  # not busy for more than nine tenths
        (9_000, 0, 0, "gpu-bound"),
        (10_000, 0, 0, "mixed"),
        (0, 9_000, 0, "gpu-bound"),
        (0, 30_000, 0, "mixed"),
        (0, 30_001, 0, "sync-bound"),
        (16_000, 32_000, 0, "mixed"),  # more than twice as much as by launches
        (15_999, 32_000, 0, "sync-bound"),
        (90_000, 0, 0, "mixed"),  # no graph is promised by what was not simulated
    ],
)
def test_without_a_prediction_the_shares_as_profiled_answer(
    bound: int, waited: int, queued: int, verdict: str
) -> None:
    said = judged(lanes(host_ns=bound, sync_wait_ns=waited, device_gap_ns=queued), None)
    assert (said.verdict, said.confidence) == (verdict, "low")
    assert "What a graph would bring is not predicted." in said.reason
    assert f"waits for launches {bound / SPAN:.0%}" in said.reason
    assert f"waits for results {waited / SPAN:.0%}" in said.reason


def test_too_much_that_is_unknown_is_no_answer_without_a_prediction_either() -> None:
    said = judged(lanes(unattributed_ns=25_001), None)
    assert (said.verdict, said.confidence) == ("cannot-tell", "low")


def elsewhere(share: float, *kinds: IdleKind, cause: GapCause | None = None) -> Doings:
    return Doings(kinds, (cause,) if cause is not None else (), share)


@pytest.mark.parametrize(
    ("idle", "share", "verdict"),
    [
        (10_001, 0.51, "host-bound"),
        (10_000, 0.51, "mixed"),  # a tenth of the time is not worth it
        (10_001, 0.5, "mixed"),
        (90_000, 1.0, "host-bound"),
    ],
)
def test_a_host_that_is_elsewhere_for_most_idle_time_is_the_cause(
    idle: int, share: float, verdict: str
) -> None:
    unmeasured = replace(PREDICTED, wall_us=None)
    assert judged(lanes(host_ns=idle), unmeasured, did=elsewhere(share)).verdict == verdict


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [(40.0, "host-bound"), (89.0, "host-bound"), (90.5, "gpu-bound"), (101.0, "gpu-bound")],
)
def test_a_wall_time_tells_how_much_idle_time_there_is_to_explain(
    busy: float, verdict: str
) -> None:
    """The trace has as much idle time each time, which the profiler may have made."""
    said = judged(lanes(host_ns=60_000), share(0.05, device_busy_us=busy), did=elsewhere(0.8))
    assert said.verdict == verdict
    assert said.reason.startswith(f"The GPU is idle for {1 - busy / 100:.0%} of") == (
        verdict == "host-bound"
    )


def test_a_host_that_is_elsewhere_needs_no_prediction_and_no_graph() -> None:
    said = judged(lanes(host_ns=40_000), None, did=elsewhere(0.8))
    assert (said.verdict, said.confidence) == ("host-bound", "low")
    sure = judged(lanes(host_ns=40_000), PREDICTED, did=elsewhere(0.8))
    assert (sure.verdict, sure.confidence) == ("host-bound", "high")
    assert "A graph does not remove that" in sure.reason
    unclear = judged(lanes(unattributed_ns=25_001), PREDICTED, did=elsewhere(0.8))
    assert unclear.verdict == "cannot-tell"


@pytest.mark.parametrize(
    ("known", "words", "advice"),
    [
        (0.41, "busy with data loading and launches nothing", "DataLoader(num_workers=..."),
        (0.40, "busy with work between two launches and launches nothing", "into another process"),
    ],
)
def test_work_that_is_known_is_named_where_it_is_most_of_what_the_host_did(
    known: float, words: str, advice: str
) -> None:
    kinds = (IdleKind("ordinary", 60.0, 0.5), IdleKind("data-loading", 40.0, known))
    unmeasured = replace(PREDICTED, wall_us=None)
    said = judged(lanes(host_ns=40_000), unmeasured, did=elsewhere(0.8, *kinds))
    assert words in said.reason
    assert said.reason.startswith("The GPU is idle for 40% of the time, 80% of that because")
    assert advice in said.advice


def test_the_line_of_the_known_work_is_named() -> None:
    kinds = (IdleKind("preprocessing", 40.0, 0.8),)
    zoom = GapCause("preprocessing", "zoom", Location("scipy/ndimage.py", 7, "zoom"), 40.0, 0.75)
    said = judged(lanes(host_ns=40_000), PREDICTED, did=elsewhere(0.8, *kinds, cause=zoom))
    assert said.reason.endswith("75% of the idle time is in zoom at scipy/ndimage.py:7 (zoom).")
    other = replace(zoom, kind="logging")
    said = judged(lanes(host_ns=40_000), PREDICTED, did=elsewhere(0.8, *kinds, cause=other))
    assert "lies in" not in said.reason


@pytest.mark.parametrize(("part", "is_told"), [(0.2, True), (0.19, False)])
def test_the_place_of_a_fifth_of_the_idle_time_is_named_where_graphs_help(
    part: float, is_told: bool
) -> None:
    cause = GapCause("ordinary", "aten::mm", None, 40.0, part)
    told = f" {part:.0%} of the idle time is in aten::mm."
    did = Doings((), (cause,), 0.0)
    assert judged(lanes(host_ns=40_000), PREDICTED, did=did).reason.endswith(told) == is_told
    mixed = judged(lanes(host_ns=40_000), share(0.2), did=did)
    assert (mixed.verdict, mixed.reason.endswith(told)) == ("mixed", is_told)
    busy = judged(lanes(), share(0.01), did=did)
    assert (busy.verdict, "lies in" in busy.reason) == ("gpu-bound", False)
    unnamed = Doings((), (replace(cause, name=""),), 0.0)
    assert "lies in" not in judged(lanes(host_ns=40_000), PREDICTED, did=unnamed).reason


@pytest.mark.parametrize(
    ("changes", "joined", "doubts", "confidence"),
    [
        ({}, 10, (), "high"),
        ({}, 9, (), "high"),
        ({}, 8, (), "low"),
        ({"wall_us": None}, 10, (), "medium"),
        ({}, 10, ("clock-skew",), "medium"),
        ({}, 10, ("lost-kernels",), "low"),
        ({"simulation_error": 0.1}, 10, (), "high"),
        ({"simulation_error": 0.11}, 10, (), "low"),
        ({"simulation_error": -0.11}, 10, (), "low"),
    ],
)
def test_confidence(
    changes: dict[str, Any], joined: int, doubts: tuple[str, ...], confidence: str
) -> None:
    times = replace(lanes(host_ns=50_000), joined=joined)
    assert judged(times, replace(PREDICTED, **changes), *doubts).confidence == confidence


def test_a_doubt_that_the_figures_allow_for_costs_no_confidence() -> None:
    doubt = Doubt("queue-full", "", corrected=True)
    assert judge_trace(lanes(), PREDICTED, [doubt], (), LAUNCHING).confidence == "high"


def test_a_step_that_mostly_lies_before_its_first_kernel_is_no_guess() -> None:
    """The device's own span says 0 %, the host's way to the first launch 93 %: neither is the step's answer."""
    found = judged(lanes(), share(0.93, wall_us=None))
    assert found.verdict == "cannot-tell"
    assert "before its first kernel" in found.reason
    assert judged(lanes(host_ns=70_000), share(0.93, wall_us=None)).verdict == "launch-bound"


def test_the_kind_of_work_that_explains_much_of_the_waiting_is_named_where_no_place_does() -> None:
    kinds = (IdleKind("ordinary", 50.0, 0.5), IdleKind("data-loading", 41.0, 0.41))
    did = Doings(
        kinds=kinds,
        causes=(GapCause("data-loading", "next", None, 19.0, 0.19),),
        elsewhere_share=0.41,
    )
    found = judged(lanes(host_ns=40_000), share(0.25), did=did)
    assert found.verdict == "mixed"
    assert found.reason.endswith("41% of the idle time is data loading.")


@pytest.mark.parametrize(("part", "is_named"), [(0.05, True), (0.049, False)])
def test_the_place_of_a_twentieth_of_the_idle_time_is_named_where_the_host_is_elsewhere(
    part: float, is_named: bool
) -> None:
    cause = GapCause("ordinary", "aten::mm", None, 1.0, part)
    found = judged(lanes(host_ns=40_000), share(0.4), did=Doings((), (cause,), 0.99))
    assert ("of the idle time is in aten::mm" in found.reason) is is_named


@pytest.mark.parametrize(("bound", "verdict"), [(0.75, "mixed"), (0.76, "cannot-tell")])
def test_a_share_that_is_more_than_half_beyond_the_profiled_one_is_no_answer(
    bound: float, verdict: str
) -> None:
    found = judged(lanes(host_ns=25_000), share(bound, wall_us=None))
    assert found.verdict == verdict


def test_a_place_that_explains_nothing_is_not_named() -> None:
    causes = (GapCause("ordinary", "aten::mm", None, 0.1, 0.001),)
    found = judged(lanes(host_ns=40_000), share(0.4), did=Doings((), causes, 0.99))
    assert (found.verdict, "aten::mm" in found.reason) == ("host-bound", False)
