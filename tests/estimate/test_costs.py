"""Costs and times of a GPU whose figures are all round, worked out by hand."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from graphdoctor.estimate import Calls, estimate, op_cost, saving_us, with_costs
from graphdoctor.estimate.costs import bandwidth_gb_s
from graphdoctor.estimate.fitted import Observed, fitted_speedup
from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile
from graphdoctor.estimate.predict import corners
from graphdoctor.estimate.ranges import (
    LEAST,
    around,
    divide,
    from_eager,
    pooled_width,
    stretched,
    towards,
)
from graphdoctor.estimate.two_lanes import Work, run
from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import HostEvent, Sync
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Arg, Iteration, Op, TensorUse
from tests.support.builders import iteration, op, recording, tensor

ROUND = {
    "host_us.operator": 10.0, "host_us.view": 2.0, "host_us.allocation": 1.0,
    "host_us.autograd": 3.0, "host_us.library_call": 4.0, "host_us.optimizer_foreach": 6.0,
    "host_us.module_call": 7.0, "host_us.backward_node": 5.0,
    "launch_us": 2.0, "launch_latency_us": 1.0, "sync_us": 4.0, "queue_gap_us": 0.25,
    "node_gap_us": 0.125, "graph_launch_us": 20.0, "graph_node_launch_us": 0.5,
    "call_us.module": 9.0, "call_us.glue": 11.0,
    "memory_gb_s": 1.0, "cache_mb": 0.0, "cache_speedup": 2.0, "copy_gb_s": 0.5,
    "smallest_kernel_us.stream": 0.5, "smallest_kernel_us.matmul": 1.5,
    "smallest_kernel_us.strided": 0.75, "memory_share.strided": 0.5, "memory_share.concat": 0.25,
    "math_tflops.fp32": 0.001, "math_tflops.tf32": 0.004, "math_tflops.fp16": 0.002,
    "math_tflops.bf16": 0.008, "math_tflops.fp64": 0.0005, "math_share": 0.5,
    "convolution_share": 0.5, "smallest_kernel_us.convolution": 1.5, "memory_share.convolution": 1.0,
    "unaligned_share": 0.25, "attention_share": 0.125,
}  # fmt: skip


def flat(struct: Any = load_profile("h100"), prefix: str = "") -> Any:  # noqa: B008
    """The profile with ROUND's figures, and 1 for the others; nothing has a width."""
    changes: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Figure):
            number = ROUND.get(prefix + name, 1.0)
            changes[name] = Figure(number, number, number, "by hand")
        elif hasattr(value, "__struct_fields__"):
            changes[name] = flat(value, f"{prefix}{name}.")
    return structs.replace(struct, **changes)


GPU: DeviceProfile = flat()


def call(name: str, *inputs: Arg, out: TensorUse | None = None, **more: Any) -> Op:
    return op(f"aten.{name}.default", inputs, [] if out is None else [out], **more)


def costs(operator: Op, *, autograd: bool = False) -> tuple[float, float, int, bool]:
    found = op_cost(operator, GPU, autograd=autograd)
    for value in (found.host_us, found.device_us):
        assert value.low == value.mid == value.high
    return (
        found.host_us.mid,
        found.device_us.mid,
        found.launches,
        found.is_sync,
    )


A, B, C = tensor(1, 1000), tensor(2, 1000), tensor(3, 1000)  # 4 us to read or to write
HOST = tensor(4, 1000, device="cpu")


@pytest.mark.parametrize(
    ("operator", "autograd", "expected"),
    [
        (call("mul", A, B, out=C), False, (10 + 1 + 2, 0.5 + 12, 1, False)),
        (call("mul", A, B, out=C), True, (10 + 1 + 3 + 2, 12.5, 1, False)),
        (call("mul", A, B, out=C, phase="backward"), True, (13, 12.5, 1, False)),
        (call("mul_", A, B, out=A, writes=(1,)), False, (10 + 2, 12.5, 1, False)),
        (call("view", A, out=tensor(1, 10, 100)), False, (2, 0, 0, False)),
        # A product of 10 x 10 by 10 x 10: 2,000 operations at half of 1,000 a us. What sums up the parts that
        # it is split into takes half as long as the smallest product.
        (
            call("mm", tensor(1, 10, 10), tensor(2, 10, 10), out=tensor(3, 10, 10)),
            False,
            (10 + 1 + 4 + 2 * 2, 1.5 * 1.5 + 4, 2, False),
        ),
        # 2 x 1,000 operations, 4 us, take less than 8,004 bytes do.
        (call("dot", A, B, out=tensor(3)), False, (10 + 1 + 2, 1.5 + 8.004, 1, False)),
        (call("_local_scalar_dense", tensor(1)), False, (10 + 2, 0.5 + 0.008, 1, True)),
        (call("_to_copy", A, out=HOST), False, (10 + 2, 0.5 + 8, 1, True)),
        # The kernel of one launch for many tensors has a figure of its own, 1 us.
        (call("_foreach_neg_", (A, B), writes=(1, 2)), False, (10 + 6 + 2, 17, 1, False)),
        (
            call("mul", tensor(1, 10, 100), structs.replace(tensor(2, 10, 100), stride=(1, 10)),
                 out=tensor(3, 10, 100)),
            False,
            (13, 0.75 + 24, 1, False),
        ),
    ],
)  # fmt: skip
def test_an_operator_costs_what_its_parts_cost(
    operator: Op, autograd: bool, expected: tuple[float, float, int, bool]
) -> None:
    assert costs(operator, autograd=autograd) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dtype", "name", "rate"),
    [("float32", "mm", 0.001), ("float16", "mm", 0.002), ("float32", "convolution", 0.004)],
)
def test_the_peak_is_that_of_the_numbers(dtype: str, name: str, rate: float) -> None:
    big = tensor(1, 64, 64, 4, 4, dtype=dtype) if name == "convolution" else None
    left = big or tensor(1, 640, 640, dtype=dtype)
    right = tensor(2, 64, 64, 1, 1, dtype=dtype) if big else tensor(2, 640, 640, dtype=dtype)
    product = call(name, left, right, out=structs.replace(left, storage=3))
    per_output = 64 if big else 640
    wanted = 2 * left.numel * per_output / 1e6 / (rate * 0.5)
    assert costs(product)[1] == pytest.approx(1.5 + wanted)


def test_rows_off_the_grid_and_attention_reach_less_of_the_peak() -> None:
    even = [tensor(at, 800, 800, dtype="float16") for at in (1, 2, 3)]
    odd = [tensor(at, 801, 801, dtype="float16") for at in (1, 2, 3)]  # computed as 896 by 896
    assert costs(call("mm", *even[:2], out=even[2]))[1] == pytest.approx(
        1.5 + 2 * 800**3 / 1e6 / (0.002 * 0.5)
    )
    assert costs(call("mm", *odd[:2], out=odd[2]))[1] == pytest.approx(
        1.5 + 2 * 896**2 * 801 / 1e6 / (0.002 * 0.5 * 0.25)
    )
    heads = [tensor(at, 1, 2, 300, 64) for at in (1, 2, 3, 4)]
    attention = call("_scaled_dot_product_flash_attention", *heads[:3], out=heads[3])
    flops = 2 * 2 * heads[0].numel * 300
    assert costs(attention)[:2] == pytest.approx(
        (10 + 1 + 4 + 2, 1 + flops / 1e6 / (0.001 * 0.125))
    )


def test_images_pay_for_their_layout_at_the_rate_of_strided_memory() -> None:
    image, result = (tensor(at, 1, 8, 10, 10, dtype="float16") for at in (1, 3))
    weight = tensor(2, 8, 8, 3, 3, dtype="float16")
    plain = 2 * 800 * 8 * 9 / 1e6 / (0.002 * 0.5)
    moved = 1600 + 1152 + 1600
    found = costs(call("convolution", image, weight, out=result))
    assert found[1] == pytest.approx(1.5 * 4 + max(plain, moved / 1e3) + 2 * moved / 1e3 / 0.5)


def test_what_half_of_the_cache_holds_is_faster() -> None:
    cached = structs.replace(GPU, cache_mb=Figure(1.0, 1.0, 1.0, "by hand"))
    share = GPU.memory_share.stream
    assert bandwidth_gb_s(cached, share, moved=500_000).mid == 2.0
    assert bandwidth_gb_s(cached, share, moved=500_001).mid == 1.0


# Two lanes.


def test_only_indexing_by_a_mask_waits() -> None:
    tags = ("dynamic_output_shape",)
    integers, mask = (tensor(5, 1000, dtype=dtype) for dtype in ("int64", "bool"))
    assert not costs(call("index", A, integers, out=B, tags=tags))[3]
    assert costs(call("index", A, mask, out=B, tags=tags))[3]
    assert costs(call("index_put_", A, mask, C, out=A))[3]
    number = tensor(6, device="cpu")
    assert not costs(call("index_put_", A, mask, number, out=A))[3]  # fills
    assert costs(call("nonzero", A, out=B, tags=tags))[3]


def work(*rows: tuple[float, float, float], waits: tuple[int, ...] = (), **more: float) -> Work:
    """Rows of host, launch and device time; no device time: the host works alone."""
    host, launch, busy = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return Work(
        host_us=host, launch_us=launch, busy_us=busy, puts=busy > 0,
        gap_us=np.full(count, more.get("gap", 0.0)), inner_us=np.full(count, more.get("inner", 0)),
        waits=np.isin(np.arange(count), waits), latency_us=2.0, sync_us=4.0,
    )  # fmt: skip


def test_a_device_that_is_slower_than_the_host_works_without_a_pause() -> None:
    """The first kernel starts at 10 + 2; the second is there at 27, before the device is free."""
    found = run(work((10, 5, 20), (10, 5, 20), gap=1))
    assert (found.span_us, found.host_us, found.busy_us) == (12 + 20 + 1 + 20, 30, 40)
    assert (found.waiting_us, found.drained_us) == (12, 0)


def test_a_host_that_is_slower_lets_the_device_wait_and_ends_last() -> None:
    """Kernels run from 12 to 15 and from 27 to 30; the host is done at 30."""
    found = run(work((10, 5, 3), (10, 5, 3), gap=1))
    assert (found.span_us, found.waiting_us) == (30, 12 + (27 - 16))
    longer = run(work((10, 5, 3), (10, 5, 3), (8, 0, 0), gap=1))
    assert (longer.span_us, longer.waiting_us) == (38, 23 + 8)


def test_a_wait_costs_the_way_back_and_is_not_laid_to_the_launches() -> None:
    """The device ends at 32; the host goes on at 36 and launches at 46: it starts at 48."""
    found = run(work((10, 5, 20), (10, 5, 20), waits=(0,)))
    assert (found.span_us, found.drained_us) == (68, 4)
    assert found.waiting_us == 12 + (48 - 32 - 4)


def test_a_wait_at_the_end_is_part_of_the_span() -> None:
    found = run(work((10, 5, 20), waits=(0,)))
    assert (found.span_us, found.waiting_us, found.drained_us) == (36, 12, 4)


def test_pauses_inside_of_a_graph_are_not_busy() -> None:
    found = run(work((10, 5, 20), inner=3))
    assert (found.span_us, found.busy_us) == (12 + 23, 20)


def test_work_of_the_host_alone_leaves_the_device_idle() -> None:
    found = run(work((10, 0, 0), (5, 0, 0)))
    assert (found.span_us, found.busy_us, found.waiting_us) == (15, 0, 15)


# Whole steps.


def step(
    *ops: Op, events: tuple[HostEvent, ...] = (), inputs: tuple[TensorUse, ...] = ()
) -> Iteration:
    return structs.replace(iteration(ops, inputs=inputs), events=events)


SMALL = (tensor(1, 250), tensor(2, 250), tensor(3, 250))  # 1 us to read or to write


def small(**more: Any) -> Op:
    """3.5 us of the device, 13 us of the host."""
    return call("mul", *SMALL[:2], out=SMALL[2], **more)


def exact(value: Range) -> float:
    assert value.low == pytest.approx(value.high)
    return value.mid


def test_a_step_of_small_operators_takes_what_its_host_takes() -> None:
    """The step's module is called once; the graph takes 20 + 3 x 0.5 us, its device less."""
    found = corners(step(small(), small(), small()), GPU)
    assert exact(found.eager_us) == pytest.approx(7 + 3 * 13)
    assert (exact(found.host_us), exact(found.busy_us)) == pytest.approx((46, 10.5))
    assert exact(found.graph_us) == pytest.approx(21.5)
    assert exact(found.speedup) == pytest.approx(46 / 21.5)
    assert exact(found.launch_bound_share) == pytest.approx((46 - 10.5 - 0.0) / 46, abs=0.02)
    assert sum(piece.launches for piece in found.eager) == 3


def test_inputs_are_copied_into_the_graph_first() -> None:
    """A copy: 12 us of the host. The device's 2 x 1 + 0.5 us hide behind the launch of the graph."""
    found = corners(step(small(), small(), inputs=SMALL[:1]), GPU)
    assert exact(found.graph_us) == pytest.approx(12 + 20 + 2 * 0.5)
    terms = estimate(step(small(), small(), inputs=SMALL[:1]), GPU).terms
    assert "1 copies, 2.5 us" in {term.value.split(" on")[0] for term in terms}


def test_entered_modules_cost_the_host_by_their_depth() -> None:
    """From outside into a.b: three calls; on to a.c: one; back to a: none."""
    found = corners(step(small(module="a.b"), small(module="a.c"), small(module="a")), GPU)
    assert exact(found.eager_us) == pytest.approx(3 * 7 + 7 + 0 + 3 * 13)


def test_backward_nodes_cost_the_host_once_each() -> None:
    def backward(forward: int | None) -> Op:
        return structs.replace(small(phase="backward"), forward_index=forward)

    found = corners(step(small(), backward(0), backward(0), backward(1)), GPU)
    started = GPU.host_us.backward_pass.mid
    assert exact(found.eager_us) == pytest.approx(7 + 13 + 3 + started + 3 * 13 + 2 * 5)
    unknown = corners(step(backward(None), backward(None)), GPU)
    assert exact(unknown.eager_us) == pytest.approx(2 * (13 + 5))


def test_a_region_leaves_the_rest_of_the_step_eager() -> None:
    """What an eager operator made is copied into the region that reads it: 12 us of the host."""
    ops = [small() for _ in range(6)]
    found = corners(step(*ops), GPU, [[1, 2, 3, 4]])
    assert exact(found.graph_us) == pytest.approx((7 + 13) + (20 + 4 * 0.5) + 13)
    reader = call("mul", SMALL[2], SMALL[1], out=tensor(5, 250))
    reading = corners(step(ops[0], reader, *ops[2:]), GPU, [[1, 2, 3, 4]])
    assert exact(reading.graph_us) == pytest.approx(20 + 12 + 22 + 13)


def test_calling_graphs_costs_the_host_what_the_profile_says() -> None:
    calls = Calls(module=2, glue=1)
    found = corners(step(small(), small(), small()), GPU, calls=calls)
    assert exact(found.graph_us) == pytest.approx(21.5 + 2 * 9.0 + 11.0)


def test_the_saving_of_operators_is_eager_less_graph() -> None:
    """Inside of their module already: 4 x 13 us of the host against 20 + 4 x 0.5."""
    ops = iteration([small(module="a") for _ in range(4)]).ops
    assert exact(saving_us(ops, GPU)) == pytest.approx(52 - 22)
    assert saving_us((), GPU) == Range(0, 0, 0)


def test_waits_are_counted_and_said() -> None:
    stop = Sync(name="torch.cuda.synchronize", op_index=1)
    found = estimate(step(small(), small(), events=(stop,)), GPU)
    assert any("waits for the device once" in note for note in found.notes)
    twice = estimate(step(small(), small(), events=(stop, structs.replace(stop, op_index=2))), GPU)
    assert any("waits for the device 2 times" in note for note in twice.notes)
    assert twice.eager_us.mid > found.eager_us.mid > 33
    assert not any("waits" in note for note in estimate(step(small()), GPU).notes)


def test_a_wait_beside_another_costs_nothing_at_all() -> None:
    """The device is idle at the second wait; without either, the other is still there."""
    ends = [Sync("torch.cuda.synchronize", 2, Location("model.py", line)) for line in (7, 8)]
    run_once = step(small(), small(), small(), events=tuple(ends))
    found = Finding("GD101", "read", "capture-fails", "", "", "", Location("model.py", 7))
    (costed,) = with_costs([found], recording(run_once), GPU)
    assert costed.cost_us == Range(0, 0, 0)


# Fitted to what was measured.


def test_a_fitted_step_takes_the_measured_time_and_its_graph_the_profile_s() -> None:
    """Ten operators in 500 us, of which 50 us busy: as one graph 20 + 10 x 0.5 or the device's time."""
    ops = step(*(small() for _ in range(10)))
    found = fitted_speedup(ops, GPU, None, observed=Observed(500.0, 50.0))
    after = 50 + 9 * 0.125 + 0.25
    assert found.mid == pytest.approx(500 / after, rel=0.01)
    assert found.low == pytest.approx(found.mid * exp(-LEAST))
    assert found.high == pytest.approx(found.mid * exp(LEAST))


def test_a_step_without_work_of_the_device_is_fitted_by_its_host_alone() -> None:
    views = step(*(call("view", A, out=tensor(1, 10, 100)) for _ in range(4)))
    found = fitted_speedup(views, GPU, [], observed=Observed(60.0, 0.0))
    assert found.mid == pytest.approx(1.0, rel=0.01)


# Ranges.


def test_many_different_parts_err_apart_and_equal_ones_alike() -> None:
    one, two = Range(1, 2, 4), Range(2, 4, 8)
    assert pooled_width([one]) == 1.0
    assert pooled_width([one, one, one]) == 1.0
    assert pooled_width([one, two]) == pytest.approx(0.5 + 0.5 * (4 + 16) ** 0.5 / 6)
    assert pooled_width([]) == pooled_width([Range(0, 0, 0)]) == 1.0


def test_an_end_moves_towards_the_middle_by_its_width() -> None:
    value = Range(1, 4, 64)
    assert [towards(value, level, 0.5) for level in ("low", "mid", "high")] == [2, 4, 16]
    assert [towards(value, level, 1.0) for level in ("low", "mid", "high")] == [1, 4, 64]
    assert towards(Range(0, 0, 0), "high", 0.5) == 0


def test_ranges_are_divided_and_stretched_end_by_end() -> None:
    assert divide(8, Range(1, 2, 4)) == Range(2, 4, 8)
    doubled = stretched(Range(1, 2, 8), 2.0, least=0.05)
    assert (doubled.low, doubled.mid, doubled.high) == pytest.approx((0.5, 2, 32))
    narrow = stretched(Range(1.99, 2, 8), 0.5, least=0.1)
    assert (narrow.low, narrow.high) == pytest.approx((2 / 1.105171, 4))
    assert stretched(Range(0, 2, 4), 1.0, least=0.1).low == 0
    assert around([2, 3, 1]) == Range(1, 2, 3)
    assert around([5, 3, 1]) == Range(1, 5, 5)


def test_what_launches_in_the_backward_pass_is_a_node_and_what_launches_nothing_is_none() -> None:
    """As a piece of one call of CUDA that a CPU takes apart, which says how many kernels it launches."""

    def host(kernels: int | None) -> float:
        node = structs.replace(small(phase="backward"), forward_index=0, kernels=kernels)
        return exact(corners(step(small(), node), GPU).host_us)

    assert host(1) == host(None)
    assert host(None) - host(0) >= 5.0


def test_a_product_takes_as_long_as_a_block_walks_and_no_shorter_than_the_smallest() -> None:
    """640 x 256 x 640 of float32: 256 steps of 0.03 us, in which the 1.5 us of the smallest kernel lie."""
    fast = structs.replace(
        GPU,
        math_tflops=structs.replace(GPU.math_tflops, fp32=Figure(1e3, 1e3, 1e3, "by hand")),
        memory_gb_s=Figure(1e6, 1e6, 1e6, "by hand"),
    )
    out = tensor(3, 640, 640)  # enough tiles for one kernel
    walked = op_cost(call("mm", tensor(1, 640, 256), tensor(2, 256, 640), out=out), fast)
    assert (walked.launches, walked.device_us.mid) == (1, pytest.approx(7.68, rel=0.01))


@pytest.mark.parametrize(
    ("has_segments", "has_glue", "least"),
    [(False, False, 0.20), (True, False, 0.14), (False, True, 0.07)],
)  # docs/prediction.md
def test_of_parts_predicted_from_eager_times_the_corners_say_nothing(
    has_segments: bool, has_glue: bool, least: float
) -> None:
    width = from_eager(is_whole=False, has_segments=has_segments, has_glue=has_glue)
    found = width.of(Range(1.0, 2.0, 9.0))
    assert found.mid == 2.0
    assert found.low == pytest.approx(2.0 * exp(-least))
    assert found.high == pytest.approx(2.0 * exp(least))
