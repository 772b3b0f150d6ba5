"""Calibration with a machine whose costs are known, and on this one as far as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from graphdoctor.cli import main
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate.gpus import Figure, figures, load_profile
from graphdoctor.measure.calibrate import calibrate, profile_text, work
from graphdoctor.measure.calibrate.figures import KINDS, burst_of, launch_bounds
from graphdoctor.measure.calibrate.gpu import GpuMachine, apart_us, bursts_us, timed_us
from graphdoctor.trace import Trace
from graphdoctor.values.errors import CannotDoItHere, UsageError
from tests.support.traces import TraceBuilder

BASE = load_profile("h200")
LAUNCH, OPERATOR, ALLOCATION, VIEW, AUTOGRAD = 2.0, 3.0, 1.5, 0.7, 1.0
LIBRARY, MODULE, NODE, FOREACH, KERNEL, GAP = 6.0, 2.5, 4.0, 8.0, 1.5, 0.6
MIXED_GAP, QUEUE_GAP, GRAPH_LAUNCH, GRAPH_NODE, COLD = 0.9, 1.2, 7.0, 0.01, 15.0
SLOWNESS = 2.0


class KnownMachine:
    """Answers with the costs above, as a GPU that has them would."""

    name = 'NVIDIA H200 "test"'
    software = "torch 9.9"

    def host_us(self, work: str) -> Sequence[float]:
        plain = LAUNCH + OPERATOR
        fresh = plain + ALLOCATION
        cost = {
            "in place": plain,
            "with result": fresh,
            "view": VIEW,
            "module": MODULE,
            "not recorded": fresh,
            "recorded": fresh + AUTOGRAD,
            "product": fresh + LIBRARY,
            "foreach": plain + FOREACH,
            "backward 50": 300.0 + 50 * (NODE + fresh),
            "backward 150": 300.0 + 150 * (NODE + fresh),
        }[work]
        return [cost * factor for factor in (0.999, 1.0, 1.001)]

    def burst_us(self, work: str) -> Sequence[Sequence[float]]:
        """Cold at first; the large graph is launched faster than the device runs it, and blocks."""
        own = GRAPH_LAUNCH + self.amount(work) * GRAPH_NODE
        late = 400.0 if self.amount(work) == 1000 else own
        row = [own + COLD, own * 1.1, own, own, late]
        return [[cost * factor for cost in row] for factor in (0.999, 1.0, 1.001)]

    def device_us(self, work: str) -> Sequence[float]:
        if work.startswith("mixed graph"):
            return [5.0 + self.amount(work) * (KERNEL + MIXED_GAP)] * 3
        if work.startswith("graph"):
            return [5.0 + self.amount(work) * (KERNEL + GAP)] * 3
        if work.startswith("large"):
            return [self.amount(work) / 1e3 / (0.8 * BASE.memory_gb_s.mid)] * 3
        if work.startswith(("up", "down")):
            return [self.amount(work) / 1e3 / 40.0] * 3
        peak = BASE.math_tflops.bf16 if work.startswith("bf16") else BASE.math_tflops.fp16
        return [self.amount(work) / 1e6 / (0.5 * peak.mid)] * 3

    def amount(self, work: str) -> float:
        *_, last = work.split(" ")
        if work.startswith(("backward", "graph of")):
            return float(last)
        return 5 * float(last) if work.startswith("mixed graph") else 1e9

    def traced(self, work: str) -> Trace:
        builder = TraceBuilder()
        if work.startswith("backward"):
            plain = LAUNCH + OPERATOR + ALLOCATION
            for index in range(50):
                at = index * (NODE + plain) * SLOWNESS
                builder.operator("autograd::engine::evaluate_function: MulBackward0", at, 2)
            return builder.trace()
        if work == "large stream":
            for index in range(20):
                builder.launch((index, 0.5), (100 + index * (KERNEL + QUEUE_GAP), KERNEL))
            return builder.trace()
        for index in range(20):
            start = index * (LAUNCH + OPERATOR) * SLOWNESS
            builder.operator("aten::add", start, 4)
            latency = 5.0 if work == "synchronize" else 6.0
            builder.launch((start + 1, LAUNCH * SLOWNESS), (start + 1 + latency, KERNEL))
        if work == "synchronize":
            builder.call("cudaDeviceSynchronize", start + 5, 1 + latency + KERNEL - 5 + 9)
        return builder.trace()


def found_figures() -> dict[str, Figure]:
    return calibrate(KnownMachine(), BASE, str).figures


def measured() -> dict[str, float]:
    return {path: figure.mid for path, figure in found_figures().items()}


def test_a_machine_s_costs_are_found_again() -> None:
    found = measured()
    for path, expected in {
        "launch_us": LAUNCH,
        "host_us.operator": OPERATOR,
        "host_us.allocation": ALLOCATION,
        "host_us.view": VIEW,
        "host_us.autograd": AUTOGRAD,
        "host_us.library_call": LIBRARY,
        "host_us.module_call": MODULE,
        "host_us.backward_node": NODE,
        "host_us.optimizer_foreach": FOREACH,
        "node_gap_us": MIXED_GAP,
        "queue_gap_us": QUEUE_GAP,
        "graph_launch_us": GRAPH_LAUNCH,
        "graph_node_launch_us": GRAPH_NODE,
        "launch_latency_us": 5.0,
        "sync_us": 9.0,
        "copy_gb_s": 40.0,
        "math_share": 0.5,
        "memory_share.stream": 0.8,
        **{f"smallest_kernel_us.{kind}": KERNEL for kind in KINDS},
    }.items():
        assert found[path] == pytest.approx(expected, rel=0.02), path


def test_every_figure_has_bounds_and_says_where_it_comes_from() -> None:
    known = dict(figures(BASE))
    for path, figure in found_figures().items():
        assert path in known
        assert 0 < figure.low <= figure.mid <= figure.high, path
        assert "measured by graphdoctor calibrate on NVIDIA H200" in figure.source


def test_a_profile_that_was_written_can_be_used(tmp_path: Path) -> None:
    found = calibrate(KnownMachine(), BASE, str)
    path = tmp_path / "mine.toml"
    path.write_text(profile_text(found, BASE, KnownMachine.name), encoding="utf-8")
    profile = load_profile(str(path))
    assert profile.title == KnownMachine.name
    assert profile.fitted_on == profile.name
    assert profile.launch_us.mid == pytest.approx(LAUNCH, rel=0.02)
    assert profile.math_tflops == BASE.math_tflops
    assert dict(figures(profile)).keys() == dict(figures(BASE)).keys()


@pytest.mark.parametrize("content", ["", "name = 3", "name = ", "[launch_us]\nlow = 'a'"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"bad\.toml"):
        load_profile(str(path))
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        load_profile("nowhere.toml")


def test_host_time_is_taken_over_many_calls_with_the_device_drained_before() -> None:
    now_s, order = 0.0, []

    def call() -> None:
        nonlocal now_s
        now_s += 4e-6
        order.append("call")

    samples = timed_us(call, lambda: now_s, lambda: order.append("drain"), calls=3)
    assert samples == pytest.approx([4.0] * len(samples))
    assert order[:6] == ["call", "drain", "call", "call", "call", "drain"]


def test_a_short_row_of_calls_is_timed_call_by_call() -> None:
    now_s, order, costs = (
        0.0,
        [],
        iter([1e-6] + [9e-6, 4e-6, 4e-6, 4e-6, 4e-6, 4e-6, 4e-6, 8e-6] * 99),
    )

    def call() -> None:
        nonlocal now_s
        now_s += next(costs)
        order.append("call")

    rows = bursts_us(call, lambda: now_s, lambda: order.append("drain"))
    assert rows[0] == pytest.approx([9, 4, 4, 4, 4, 4, 4, 8])
    assert order[:3] == ["call", "drain", "call"]
    assert burst_of(rows).cold_us == pytest.approx(9)
    assert burst_of(rows).warm_us == pytest.approx(4)


def test_what_a_call_uses_up_is_made_in_untimed_time() -> None:
    now_s, made = 0.0, 0

    def before() -> None:
        nonlocal now_s, made
        now_s, made = now_s + 1.0, made + 1

    def call() -> None:
        nonlocal now_s, made
        assert made == 1
        now_s, made = now_s + 5e-6, 0

    samples = apart_us(before, call, clock=lambda: now_s, drain=lambda: None)
    assert samples == pytest.approx([5.0] * len(samples), rel=1e-4)


def test_a_launch_that_waits_for_the_device_is_not_taken_for_the_host_s_cost() -> None:
    few = burst_of([[30.0, 8.1, 8.1, 8.1]] * 5)
    many = burst_of([[39.0, 18.0, 950.0, 990.0]] * 5)
    fixed, node = launch_bounds({10: few, 1000: many})
    assert node == pytest.approx([0.01] * 3)
    assert fixed == pytest.approx((8.0, 8.0, 30.0))


def test_what_was_seen_on_the_way_is_kept_in_the_profile() -> None:
    found = calibrate(KnownMachine(), BASE, str)
    text = profile_text(found, BASE, KnownMachine.name)
    assert len(found.seen) >= 8
    for line in found.seen:
        assert f"\n# {line}\n" in text
    (places,) = (line for line in found.seen if "1000 nodes" in line)
    assert places.endswith("32.000 18.700 17.000 17.000 400.000 us")


def test_the_gap_between_nodes_has_its_bounds_from_other_kernels() -> None:
    gap = found_figures()["node_gap_us"]
    assert (gap.low, gap.mid, gap.high) == pytest.approx((GAP, MIXED_GAP, QUEUE_GAP), rel=0.02)


def test_every_piece_of_work_that_a_cpu_can_do_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LARGE_BYTES", 1 << 18)
    monkeypatch.setattr(work, "SIDES", (8,))
    monkeypatch.setattr(work, "TOKENS", (4,))
    cpu, tiny = torch.device("cpu"), torch.ones(work._TINY)
    pieces = {**work._host_work(torch, tiny), **work._small_kernels(torch, tiny)}
    pieces |= {**work._large(torch, cpu), **work._products(torch, cpu)}
    for name in set(pieces) - {"synchronize"}:
        (pieces[name].before or list)()
        pieces[name].call()
    assert {f"small {kind}" for kind in KINDS} | {"large sliced", "bf16 8"} <= set(pieces)
    moved = {"large stream": 2, "large strided": 3, "large sliced": 1, "large concat": 4}
    for name, times in moved.items():
        assert pieces[name].amount == times * (1 << 18), name


def test_on_the_emulated_device_it_times_and_says_that_no_kernel_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_LARGE_BYTES", 1 << 18)
    monkeypatch.setattr(work, "SIDES", (8,))
    monkeypatch.setattr(work, "TOKENS", (4,))
    monkeypatch.setattr(work, "_MIXED_SHAPE", (2, 4))
    with EmulatedDevice():
        machine = GpuMachine()
        assert len(machine.host_us("backward 50")) == len(machine.host_us("view")) > 5
        assert {len(row) for row in machine.burst_us("graph of 10")} == {8}
        assert len(machine.traced("backward 50").operators) > 50
        with pytest.raises(CannotDoItHere, match="sees no kernels"):
            calibrate(machine, BASE, str)


def test_the_graphs_have_as_many_nodes_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(work, "_MIXED_SHAPE", (2, 4))
    with EmulatedDevice():
        graph_class = torch.cuda.CUDAGraph

        class Counting(graph_class):  # type: ignore[misc, valid-type]
            def capture_end(self) -> None:
                super().capture_end()
                counted.append(self.operators)

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Counting)
        pieces = work._graphs(torch, torch.ones(work._TINY, device="cuda"))
        graphs = [piece for name, piece in pieces.items() if "graph of" in name]
        for piece in graphs:
            piece.call()
        pieces["mixed kernels"].call()
        monkeypatch.undo()
    assert counted == [piece.amount for piece in graphs]
    assert pieces["mixed kernels"].amount == pieces["mixed graph of 20"].amount


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotDoItHere):
        GpuMachine()
    assert main(["calibrate"]) == 4
    assert "torch finds none here" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
def test_this_gpu_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    assert main(["calibrate", "-o", str(path)]) == 0
    assert load_profile(str(path)).launch_us.mid < 20
