"""Kernels that a compiler would launch instead of the recorded ones: which become one, and what that gains."""

from __future__ import annotations

import pytest

from graphdoctor.estimate import estimate
from graphdoctor.estimate.costs import bytes_moved
from graphdoctor.estimate.fusion import fused, with_fusion
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Iteration, Op
from tests.support.builders import iteration, op, tensor

H200 = load_profile("h200")
SIZE = 1 << 22


def add(read: int, made: int, *, module: str = "layer", size: int = SIZE) -> Op:
    return op("aten.add.Tensor", [tensor(read, size), 1.0], [tensor(made, size)], module=module)


def product(read: int, made: int) -> Op:
    uses = [tensor(read, 64, 64), tensor(900, 64, 64)]
    return op("aten.mm.default", uses, [tensor(made, 64, 64)], module="layer")


def names(step: Iteration) -> list[str]:
    return [each.name for each in fused(step).iteration.ops]


def test_pointwise_work_between_two_products_is_one_kernel() -> None:
    step = iteration([product(0, 1), add(1, 2), add(2, 3), add(3, 4), product(4, 5)])
    found = fused(step)
    assert names(step) == ["aten.mm.default", "inductor.fused.default", "aten.mm.default"]
    assert found.position_of == (0, 1, 1, 1, 2)
    assert (found.launches_before, found.launches) == (7, 5)  # products of float32 are split in two
    assert [each.index for each in found.iteration.ops] == [0, 1, 2]


def test_it_moves_what_it_reads_and_what_others_read_and_nothing_between() -> None:
    (only,) = fused(iteration([add(1, 2), add(2, 3), add(3, 4)])).iteration.ops
    assert bytes_moved(only) == 2 * 4 * SIZE
    step = iteration([add(1, 2), add(2, 3), product(3, 4), add(2, 5)])
    kernel = fused(step).iteration.ops[0]
    assert {use.storage for use in kernel.outputs} == {2, 3}  # 2 is read again behind the product


def test_a_view_within_reads_nothing() -> None:
    weight = tensor(50, SIZE)
    view = op("aten.t.default", [weight], [weight], module="layer")
    (kernel,) = fused(iteration([add(1, 2), view, add(2, 3)])).iteration.ops
    assert {use.storage for use in kernel.inputs} == {1}


def test_what_is_written_in_place_counts_as_written() -> None:
    into = tensor(7, SIZE)
    steps = [op("aten.add_.Tensor", [into, 1.0], [into], writes=[7], module="layer"), add(7, 8)]
    (kernel,) = fused(iteration(steps)).iteration.ops
    assert kernel.writes == (7,)
    assert not kernel.is_view


@pytest.mark.parametrize(
    "other",
    [
        op("aten.add.Tensor", [tensor(2, SIZE)], [tensor(3, SIZE)]),  # of the user's own Python
        op("aten.bernoulli.p", [tensor(2, SIZE)], [tensor(3, SIZE)], module="layer",
           tags=["nondeterministic_seeded"]),
        op("aten.sort.default", [tensor(2, SIZE)], [tensor(3, SIZE)], module="layer"),
        op("aten.add.Tensor", [tensor(2, SIZE)], [tensor(3, SIZE)], phase="optimizer"),
    ],
)  # fmt: skip
def test_what_a_compiler_leaves_alone_stays_a_kernel_of_its_own(other: Op) -> None:
    step = iteration([add(1, 2), other, add(3, 4)])
    assert fused(step).launches == fused(step).launches_before


def test_a_chain_of_pointwise_work_gains_and_a_product_does_not() -> None:
    chain = iteration(add(index, index + 1) for index in range(20))
    before = estimate(chain, H200).speedup
    after = with_fusion(before, chain, H200, None)
    assert after.low == before.low
    assert before.mid * 2 < after.mid < after.high
    products = iteration(product(index, index + 1) for index in range(20))
    same = with_fusion(Range(1.0, 2.0, 3.0), products, H200, None)
    assert same == Range(1.0, 2.0, 3.0)


def test_regions_go_with_their_operators() -> None:
    chain = iteration(add(index, index + 1) for index in range(20))
    whole = with_fusion(Range(1.0, 1.0, 1.0), chain, H200, [tuple(range(20))])
    assert whole.mid > 2.0


def test_what_a_compiler_gains_beyond_fewer_kernels_widens_the_high_end_alone() -> None:
    few = iteration([*(product(n, n + 1) for n in range(20)), add(20, 21), add(21, 22)])
    found = with_fusion(Range(1.0, 2.0, 3.0), few, H200, None)
    gain = found.mid / 2.0
    assert 1.0 < gain < 1.5  # one kernel of twenty-two is gone
    assert found == Range(1.0, 2.0 * gain, pytest.approx(3.0 * gain * 1.3))


def phased(read: int, made: int, *, phase: str, of: int | None = None, module: str = "") -> Op:
    made_by = op(
        "aten.add.Tensor", [tensor(read, SIZE)], [tensor(made, SIZE)], module=module, phase=phase
    )  # type: ignore[arg-type]
    fields = {name: getattr(made_by, name) for name in made_by.__struct_fields__}
    return Op(**{**fields, "forward_index": of})


@pytest.mark.parametrize(
    ("ops", "launches"),
    [
        ([("forward", None, "")] * 3, 1),  # without modules the step itself is compiled
        ([("forward", None, ""), ("optimizer", None, ""), ("optimizer", None, "")], 3),
        ([("forward", None, "a"), ("forward", None, ""), ("forward", None, "")], 3),
        ([("forward", None, "a"), ("backward", 0, "a"), ("backward", 0, "a")], 2),
        ([("forward", None, "a"), ("backward", 9, "a"), ("backward", None, "a")], 3),
        ([("forward", None, "a"), ("forward", None, "a"), ("backward", 0, "a")], 2),
    ],
)
def test_what_runs_in_modules_is_compiled_and_its_backward_pass_by_itself(
    ops: list[tuple[str, int | None, str]], launches: int
) -> None:
    step = iteration(
        phased(n, n + 1, phase=phase, of=of, module=module)
        for n, (phase, of, module) in enumerate(ops)
    )
    assert fused(step).launches == launches


def test_a_kernel_stands_where_the_first_of_its_operators_did() -> None:
    (kernel,) = fused(iteration([add(1, 2, module="a"), add(2, 3, module="b")])).iteration.ops
    assert kernel.module == "a"


def test_work_of_the_host_in_between_ends_no_kernel() -> None:
    host = op("aten.add.Tensor", [tensor(50, 4, device="cpu")], [tensor(51, 4, device="cpu")])
    assert names(iteration([add(1, 2), host, add(2, 3)])) == ["inductor.fused.default"]
