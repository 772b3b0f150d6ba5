"""The predicted estimate: hand-written recordings against each other and the vendor's limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from graphdoctor.estimate import Calls, estimate, launches, op_cost, saving_us
from graphdoctor.estimate.costs import KnownCosts, bytes_moved
from graphdoctor.estimate.gpus import load_profile, profile_names
from graphdoctor.estimate.predict import corners
from graphdoctor.values.figures import Range
from graphdoctor.values.host_events import Sync
from graphdoctor.values.recording import Iteration, Leaf, Op, TensorUse
from graphdoctor.values.speed import Estimate
from tests.support.builders import iteration, op, tensor

H100 = load_profile("h100")


def chain(count: int, *shape: int) -> Iteration:
    """`count` elementwise operators, each on the result of the one before."""
    return iteration(
        op("aten.mul.Tensor", [tensor(index, *shape), 2.0], [tensor(index + 1, *shape)])
        for index in range(count)
    )


def foreach(count: int, elements: int) -> Op:
    first = tuple(tensor(2 * index, elements) for index in range(count))
    second = tuple(tensor(2 * index + 1, elements) for index in range(count))
    writes = [use.storage for use in first]
    return op("aten._foreach_add_.List", [first, second], writes=writes)  # type: ignore[list-item]


def is_ordered(value: Range) -> bool:
    return value.low <= value.mid <= value.high


# Launches.


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (op("aten.mul.Tensor", [tensor(1, 4)], [tensor(2, 4)]), 1),
        (op("aten.view.default", [tensor(1, 4)], [tensor(1, 2, 2)]), 0),
        (op("aten.relu_.default", [tensor(1, 4)], [tensor(1, 4)], writes=[1]), 1),
        (op("aten.empty.memory_format", [], [tensor(1, 4)]), 0),
        (op("aten.add.Tensor", [tensor(1, 4, device="cpu")], [tensor(2, 4, device="cpu")]), 0),
        (op("aten.mul.Tensor", [tensor(1, 0)], [tensor(2, 0)]), 0),
        (op("aten.native_layer_norm_backward.default", [tensor(1, 4)], [tensor(2, 4)]), 2),
        (op("aten._local_scalar_dense.default", [tensor(1)], []), 1),
        (op("aten.is_same_size.default", [tensor(1, 4), tensor(2, 4)], []), 0),
        (op("aten.cat.default", [tuple(tensor(at, 4) for at in range(300))], [tensor(999, 9)]), 3),
        (foreach(1, 10), 1),
        (foreach(64, 10), 1),
        (foreach(65, 10), 2),
        (foreach(2, 65536 * 320), 2),
    ],
)
def test_launches_follow_from_the_operator(operator: Op, expected: int) -> None:
    assert launches(operator) == expected


# One operator.


def test_a_view_costs_the_host_and_not_the_device() -> None:
    cost = op_cost(op("aten.view.default", [tensor(1, 1000)], [tensor(1, 10, 100)]), H100)
    assert cost.device_us == Range(0, 0, 0)
    assert 0 < cost.host_us.mid < op_cost(chain(1, 8).ops[0], H100).host_us.mid


@pytest.mark.parametrize("name", profile_names())
def test_nothing_is_predicted_faster_than_the_data_sheet_allows(name: str) -> None:
    profile = load_profile(name)
    elements = 400_000_000
    copied = op_cost(chain(1, elements).ops[0], profile).device_us
    assert copied.low > 0.94 * 8 * elements / (profile.memory_gb_s.high * 1e3)
    size = 8192
    use = [replace(tensor(at, size, size), dtype="float16", itemsize=2) for at in (1, 2, 3)]
    product = op_cost(op("aten.mm.default", use[:2], use[2:]), profile).device_us
    assert product.low > 2 * size**3 / (profile.math_tflops.fp16.high * 1e6)


def test_a_strided_operand_costs_bandwidth_and_an_expanded_one_costs_no_bytes() -> None:
    plain = tensor(1, 4096, 4096)
    turned = replace(plain, stride=(1, 4096))
    expanded = replace(tensor(2, 4096, 1), shape=(4096, 4096), stride=(1, 0))
    result = tensor(3, 4096, 4096)

    def device_us(*inputs: TensorUse) -> float:
        return op_cost(op("aten.add.Tensor", inputs, [result]), H100).device_us.mid

    assert device_us(turned, plain) > 1.5 * device_us(plain, plain)
    assert device_us(turned, expanded) < device_us(turned, plain)


def test_looking_up_rows_does_not_read_the_whole_table() -> None:
    table, rows = tensor(1, 50_000_000, 64), tensor(2, 128, dtype="int64")
    cost = op_cost(op("aten.embedding.default", [table, rows], [tensor(3, 128, 64)]), H100)
    assert cost.device_us.high < 20


def test_float32_products_are_slower_than_half_and_convolutions_may_use_tf32() -> None:
    wide = [tensor(at, 4096, 4096) for at in (1, 2, 3)]
    half = [replace(use, dtype="float16", itemsize=2) for use in wide]
    slow = op_cost(op("aten.mm.default", wide[:2], wide[2:]), H100).device_us.mid
    fast = op_cost(op("aten.mm.default", half[:2], half[2:]), H100).device_us.mid
    assert slow > 5 * fast
    image, weight, result = (
        tensor(1, 32, 64, 56, 56),
        tensor(2, 64, 64, 3, 3),
        tensor(3, 32, 64, 56, 56),
    )
    image = replace(image, stride=(64 * 56 * 56, 1, 64 * 56, 64))
    convolution = op("aten.convolution.default", [image, weight], [result])
    flops = 2 * result.numel * 64 * 9
    assert op_cost(convolution, H100).device_us.mid < flops / (H100.math_tflops.fp32.mid * 1e6)


def test_the_precision_of_products_is_mentioned_where_there_are_any() -> None:
    sides = [tensor(at, 8, 8) for at in (1, 2, 3)]
    product = iteration([op("aten.mm.default", sides[:2], sides[2:])])
    assert any("full precision" in note for note in estimate(product, H100).notes)
    assert not any("precision" in note for note in estimate(chain(2, 8), H100).notes)


def test_recording_for_backward_costs_the_host_more() -> None:
    one = chain(1, 8).ops[0]
    assert op_cost(one, H100, autograd=True).host_us.mid > op_cost(one, H100).host_us.mid


def test_long_rows_that_do_not_fit_are_read_three_times() -> None:
    def moved(columns: int) -> float:
        use = replace(tensor(1, 4096, columns), dtype="float16", itemsize=2)
        softmax = op("aten._softmax.default", [use, -1, False], [replace(use, storage=2)])
        return bytes_moved(softmax) / use.nbytes

    assert (moved(1024), moved(4096), moved(4097), moved(40_000)) == (2, 2, 4, 4)


def test_a_product_with_rows_off_the_grid_is_slower_and_a_wide_one_is_not() -> None:
    def device_us(side: int, itemsize: int = 2) -> float:
        uses = [
            replace(tensor(at, 8, side, side), dtype="float16", itemsize=itemsize)
            for at in (1, 2, 3)
        ]
        return op_cost(op("aten.bmm.default", uses[:2], uses[2:]), H100).device_us.mid

    assert device_us(3137) > 3 * device_us(3136)
    assert device_us(3137, itemsize=4) < 1.1 * device_us(3136, itemsize=4)


def test_a_convolution_pays_for_its_layout_unless_channels_are_last() -> None:
    def convolution(strides: tuple[int, ...], itemsize: int = 2) -> Op:
        image, weight, result = (
            replace(tensor(at, *shape), dtype="float16", itemsize=itemsize)
            for at, shape in ((1, (8, 64, 56, 56)), (2, (64, 64, 3, 3)), (3, (8, 64, 54, 54)))
        )
        image = replace(image, stride=strides)
        return op("aten.convolution.default", [image, weight], [result])

    first, last = (64 * 56 * 56, 56 * 56, 56, 1), (64 * 56 * 56, 1, 64 * 56, 64)
    assert launches(convolution(first)) == launches(convolution(last)) + 3
    assert launches(convolution(first, itemsize=4)) == launches(convolution(first))
    assert op_cost(convolution(first), H100).device_us.mid > (
        1.5 * op_cost(convolution(last), H100).device_us.mid
    )


@given(st.integers(1, 40))
def test_a_cost_that_is_known_already_is_that_of_the_operator(seed: int) -> None:
    known = KnownCosts(H100)
    for shift in (0, seed):  # the same operators on other storages
        host = replace(tensor(1 + shift, 8), device="cpu")
        device, other = tensor(2 + shift, 8), tensor(3 + shift, 8)
        for each in (
            op("aten.add.Tensor", [device, other], [tensor(4 + shift, 8)]),
            op("aten.add.Tensor", [device, device], [tensor(4 + shift, 8)]),
            op("aten.add_.Tensor", [device, other], [device], writes=[2 + shift]),
            op("aten.view.default", [device], [replace(device, shape=(2, 4))]),
            op("aten.copy_.default", [device, host, True], [device], writes=[2 + shift]),
            op("aten.copy_.default", [device, host, False], [device], writes=[2 + shift]),
            op("aten.copy_.default", [device, host, 1], [device], writes=[2 + shift]),
            foreach(65, 10),
            foreach(64, 10),
        ):
            for autograd in (False, True):
                expected = op_cost(each, H100, autograd=autograd)
                assert known.cost(each, autograd=autograd) == expected


# A whole step.


def test_small_kernels_are_launch_bound_and_large_ones_are_not() -> None:
    small, large = estimate(chain(100, 8), H100), estimate(chain(100, 64, 1024, 1024), H100)
    assert small.launch_bound_share.mid > 0.5
    assert small.speedup.mid > 1.5
    assert large.launch_bound_share.high < 0.05
    assert large.speedup.high < 1.1
    assert (small.basis, small.launches) == ("predicted", 100)


def test_the_launch_bound_share_falls_as_tensors_grow() -> None:
    sizes = [2**power for power in range(4, 28, 3)]
    shares = [estimate(chain(30, size), H100).launch_bound_share.mid for size in sizes]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 > 0.1 > shares[-1]


def test_a_slower_gpu_is_less_launch_bound() -> None:
    step = chain(50, 2**20)
    assert (
        estimate(step, load_profile("t4")).launch_bound_share.mid
        < estimate(step, H100).launch_bound_share.mid
    )


def test_a_wait_in_the_middle_makes_the_step_longer_and_is_mentioned() -> None:
    large = (64, 1024, 1024)
    plain = chain(20, *large)
    read = op("aten._local_scalar_dense.default", [tensor(1)])
    reading = iteration([*plain.ops[:10], read, *plain.ops[10:]])
    waiting = replace(plain, events=(Sync("torch.cuda.synchronize", 10),))
    before = estimate(plain, H100)
    for stopped in (estimate(reading, H100), estimate(waiting, H100)):
        assert stopped.eager_us.mid > before.eager_us.mid
        assert any("waits for the device once" in note for note in stopped.notes)
    assert not any("waits" in note for note in before.notes)


def test_a_wait_after_the_last_operator_counts() -> None:
    plain = chain(5, 8)
    ending = replace(plain, events=(Sync("torch.cuda.synchronize", 5),))
    assert estimate(ending, H100).eager_us.mid > estimate(plain, H100).eager_us.mid


def test_entering_modules_and_running_backward_nodes_cost_the_host() -> None:
    flat = chain(20, 8)
    nested = iteration(replace(each, module=f"layer.{each.index}") for each in flat.ops)
    backward = iteration(
        replace(each, phase="backward", forward_index=each.index) for each in flat.ops
    )
    base = estimate(flat, H100).host_us.mid
    assert estimate(nested, H100).host_us.mid > base + 20
    assert estimate(backward, H100).host_us.mid > base


def test_only_different_operators_err_apart_and_narrow_the_range_of_their_total() -> None:
    def width(step: Iteration) -> float:
        found = corners(step, H100).busy_us
        return found.high / found.low

    different = iteration(
        op("aten.mul.Tensor", [tensor(index, 2**20 + index)], [tensor(index + 100, 2**20 + index)])
        for index in range(100)
    )
    one = op_cost(different.ops[0], H100).device_us
    assert width(chain(100, 2**20)) == pytest.approx(one.high / one.low, rel=1e-3)
    assert 1.2 < width(different) < 0.8 * width(chain(100, 2**20))


def test_inputs_are_copied_into_the_graph() -> None:
    step = chain(20, 16, 1024, 1024)
    with_input = replace(step, inputs=(Leaf("inputs[0]", tensor(0, 16, 1024, 1024)),))
    assert any("copies" in term.name for term in estimate(with_input, H100).terms)
    extra = estimate(with_input, H100).graph_us.mid - estimate(step, H100).graph_us.mid
    assert extra == pytest.approx(op_cost(step.ops[0], H100).device_us.mid, rel=0.2)


def test_regions_lie_between_eager_and_the_whole_graph() -> None:
    step = chain(100, 8)
    none, half, whole = (
        estimate(step, H100, regions) for regions in ([], [range(50)], [range(100)])
    )
    assert none.graph_us == none.eager_us
    assert none.speedup == Range(1, 1, 1)
    assert none.eager_us.mid > half.graph_us.mid > whole.graph_us.mid
    assert whole.graph_us == estimate(step, H100).graph_us
    split = estimate(step, H100, [range(50), range(50, 100)])
    assert split.graph_us.mid > whole.graph_us.mid


def test_calling_graphs_costs_the_host() -> None:
    step = chain(100, 256)
    half = [range(50)]
    free, called = (estimate(step, H100, half, calls=Calls(module=n)).speedup for n in (0, 3))
    assert called.mid < free.mid


def test_what_an_eager_operator_makes_is_copied_into_the_region_that_reads_it() -> None:
    step = chain(3, 64, 1024, 1024)
    late = estimate(step, H100, [range(1, 3)])
    early = estimate(step, H100, [range(2)])
    copied = op_cost(step.ops[0], H100).device_us.mid
    assert late.graph_us.mid - early.graph_us.mid == pytest.approx(copied, rel=0.2)


def test_saving_is_large_for_many_small_operators_and_not_sure_for_a_single_one() -> None:
    assert saving_us(chain(100, 8).ops, H100).low > 0
    assert saving_us(chain(1, 8).ops, H100).low <= 0
    assert saving_us((), H100) == Range(0, 0, 0)
    assert saving_us(chain(200, 8).ops, H100).mid > 1.9 * saving_us(chain(100, 8).ops, H100).mid


def test_an_empty_step_and_a_step_on_the_cpu_gain_nothing() -> None:
    empty = estimate(iteration([]), H100)
    assert (empty.launches, empty.eager_us.mid, empty.launch_bound_share.mid) == (0, 0.0, 0.0)
    cpu = iteration(
        [op("aten.add.Tensor", [tensor(1, 4, device="cpu")], [tensor(2, 4, device="cpu")])]
    )
    assert estimate(cpu, H100).device_busy_us == Range(0, 0, 0)


def test_every_term_has_a_source_and_a_carried_over_figure_is_admitted() -> None:
    found = estimate(chain(3, 8), load_profile("t4"))
    assert all(term.source and term.value for term in found.terms)
    assert any("carried over" in note for note in found.notes)
    fitted_there = estimate(chain(3, 8), load_profile("h200"))
    assert not any("carried over" in note for note in fitted_there.notes)


_NAMES = st.sampled_from(
    (
        "aten.mul.Tensor",
        "aten.mm.default",
        "aten.sum.dim_IntList",
        "aten._local_scalar_dense.default",
        "aten.view.default",
        "aten._softmax.default",
        "aten.embedding.default",
    )
)


@st.composite
def steps(draw: st.DrawFn) -> Iteration:
    made = []
    for index in range(draw(st.integers(0, 25))):
        size = draw(st.sampled_from((1, 64, 1024, 4096)))
        same = draw(st.booleans())
        use = tensor(index, size, size)
        made.append(
            replace(
                op(
                    draw(_NAMES),
                    [use, tensor(index + 50, size, size)],
                    [use if same else tensor(index + 1, size, size)],
                ),
                phase=draw(st.sampled_from(("forward", "backward", "optimizer"))),
                module=draw(st.sampled_from(("", "a", "a.b", "c"))),
                writes=(index,) if same and draw(st.booleans()) else (),
            )
        )
    return iteration(made)


@given(steps(), st.sampled_from(("h100", "t4", "a100")), st.booleans())
def test_every_figure_is_ordered_and_consistent(step: Iteration, gpu: str, cut: bool) -> None:
    regions: Sequence[Sequence[int]] | None = [range(len(step.ops) // 2)] if cut else None
    found: Estimate = estimate(step, load_profile(gpu), regions)
    for value in (
        found.host_us,
        found.device_busy_us,
        found.eager_us,
        found.graph_us,
        found.launch_bound_share,
        found.speedup,
    ):
        assert is_ordered(value)
    for end in ("low", "mid", "high"):
        eager, busy = getattr(found.eager_us, end), getattr(found.device_busy_us, end)
        assert eager >= busy * (1 - 1e-9)
        assert 0 <= getattr(found.launch_bound_share, end) <= 1
    at = corners(step, load_profile(gpu), regions)
    if not any(piece.nodes for piece in at.graph):  # no graph would hold anything
        assert (found.speedup, found.graph_us) == (Range(1, 1, 1), found.eager_us)
    else:
        assert at.speedup.high <= at.eager_us.high / at.graph_us.low * (1 + 1e-9)
        assert found.speedup.mid == pytest.approx(found.eager_us.mid / found.graph_us.mid)


def test_a_term_shows_its_bounds_where_they_are_not_one() -> None:
    known = replace(H100.memory_gb_s, low=3000.0, mid=3000.0, high=3000.0)
    wide = replace(H100.launch_us, low=1.5, mid=2.0, high=2.5)
    found = estimate(chain(3, 8), replace(H100, memory_gb_s=known, launch_us=wide))
    values = {term.name: term.value for term in found.terms}
    assert values["memory bandwidth"] == "3000 GB/s"
    assert values["host, one kernel launch"] == "2 (1.5 to 2.5) us"
    assert values["kernel launches"] == "3"
