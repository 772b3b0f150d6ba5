"""partition: regions that can be captured, what limits them, an order that changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.estimate import launches
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.partition import Plan, PlannedRegion, partition
from graphdoctor.partition.hazards import Signatures, cutting, hazards, is_host_read
from graphdoctor.partition.regions import schedule
from graphdoctor.rules.rule import Hit
from graphdoctor.values.recording import External, Iteration, Op
from tests.support.builders import external, hit, iteration, op, recording, tensor
from tests.support.random_steps import STEPS, random_step, results_in

_READ = ["data_dependent_output"]


@dataclass(frozen=True)
class _Diagnosis:
    hits: tuple[tuple[str, Hit], ...] = ()
    findings: tuple[object, ...] = ()


def _plan(
    iterations: Iteration | Sequence[Iteration], *hits: tuple[str, Hit], gpu: str = "h100"
) -> Plan:
    runs = [iterations] if isinstance(iterations, Iteration) else iterations
    return partition(recording(*runs), _Diagnosis(hits), profile=load_profile(gpu))


def _order(step: Iteration, *hits: tuple[str, Hit]) -> tuple[int, ...]:
    """The positions of an iteration in the order in which the plan's slots run them."""
    (found,) = hazards(recording(step), cutting(hits), Signatures())
    return schedule(step.ops, found).order


def _chain(
    count: int, *, start: int = 0, module: str = "", name: str = "aten.relu.default"
) -> list[Op]:
    """`count` operators, each on the result of the one before; `start` is the first storage."""
    return [
        op(name, [tensor(at, 4)], [tensor(at + 1, 4)], module=module, line=at)
        for at in range(start, start + count)
    ]


def _item(storage: int, **extra: Any) -> Op:
    return op("aten._local_scalar_dense.default", [tensor(storage, 1)], tags=_READ, **extra)


def _indices(plan: Plan, at: int = 0) -> list[tuple[int, ...]]:
    return [planned.ops_in(at) for planned in plan.regions]


def test_a_step_without_hits_is_one_region() -> None:
    plan = _plan(iteration(_chain(12, module="net.body"), externals=[external(0, "inputs[0]")]))
    assert plan.whole
    (planned,) = plan.regions
    region = planned.region
    assert (region.name, region.operators, region.launches) == ("A", 12, 12)
    assert (region.phases, region.modules, region.blocked_by) == (("forward",), ("net",), ())
    assert region.first is not None and region.first.line == 0
    assert region.last is not None and region.last.line == 11
    assert region.worthwhile
    assert planned.ops_in(0) == tuple(range(12))
    assert planned.ops_in(7) == ()
    assert plan.safe_modules == ("net",)


def test_a_host_read_ends_one_region_and_begins_the_next() -> None:
    step = iteration([*_chain(12), _item(12), *_chain(12, start=12)])
    plan = _plan(step, ("GD101", hit(12)))
    assert not plan.whole
    assert _indices(plan) == [tuple(range(12)), tuple(range(13, 25))]
    assert [each.region.name for each in plan.regions] == ["A", "B"]
    assert [each.region.blocked_by for each in plan.regions] == [("GD101",), ("GD101",)]


def test_nothing_moves_before_a_host_read_even_if_it_reads_other_data() -> None:
    step = iteration([*_chain(3), _item(50), *_chain(3, start=60)])
    plan = _plan(step, ("GD101", hit(3)))
    assert _indices(plan) == [(0, 1, 2), (4, 5, 6)]
    assert _order(step, ("GD101", hit(3))) == tuple(range(7))


def test_a_copy_of_host_data_moves_before_the_region_that_it_would_split() -> None:
    copy = op("aten._to_copy.default", [tensor(90, 4, device="cpu")], [tensor(91, 4)])
    use = op("aten.add.Tensor", [tensor(3, 4), tensor(91, 4)], [tensor(4, 4)])
    step = iteration([*_chain(3), copy, use, *_chain(3, start=4)])
    plan = _plan(step, ("GD104", hit(3)))
    assert _indices(plan) == [(0, 1, 2, 4, 5, 6, 7)]
    assert _order(step, ("GD104", hit(3))) == (3, 0, 1, 2, 4, 5, 6, 7)
    assert plan.regions[0].region.blocked_by == ("GD104",)
    assert not plan.whole


def test_a_copy_into_memory_that_the_region_reads_cannot_move() -> None:
    copy = op("aten.copy_.default", [tensor(1, 4), tensor(90, 4, device="cpu")], [tensor(1, 4)],
              writes=[1])  # fmt: skip
    step = iteration([*_chain(3), copy, op("aten.neg.default", [tensor(1, 4)], [tensor(9, 4)])])
    plan = _plan(step, ("GD104", hit(3)))
    assert _indices(plan) == [(0, 1, 2), (4,)]


def test_a_write_stays_behind_a_blocked_reader_of_what_it_replaces() -> None:
    reader = op("aten.add.Tensor", [tensor(2, 4), tensor(50, 4)], [tensor(51, 4)])
    write = op("aten.zero_.default", [tensor(50, 4)], [tensor(50, 4)], writes=[50])
    plan = _plan(iteration([*_chain(2), reader, write]), ("GD205", hit(2)))
    assert _indices(plan) == [(0, 1), (3,)]


def test_two_writes_of_the_same_memory_keep_their_order() -> None:
    first = op("aten.fill_.Scalar", [tensor(50, 4), 2.0], [tensor(50, 4)], writes=[50])
    second = op("aten.zero_.default", [tensor(50, 4)], [tensor(50, 4)], writes=[50])
    step = iteration([*_chain(2), op("aten.copy_.default", [tensor(50, 4), tensor(2, 4)],
                                     [tensor(50, 4)], writes=[50]), second, first])  # fmt: skip
    assert _order(step, ("GD205", hit(2))) == (0, 1, 2, 3, 4)


def test_a_blocked_operator_that_nothing_needs_moves_behind() -> None:
    scaled = op("aten.mul.Tensor", [tensor(2, 4), 0.5], [tensor(80, 4)])
    step = iteration([*_chain(3), scaled, *_chain(3, start=3)])
    plan = _plan(step, ("GD205", hit(3)))
    assert _indices(plan) == [(0, 1, 2, 4, 5, 6)]
    assert _order(step, ("GD205", hit(3))) == (0, 1, 2, 4, 5, 6, 3)


def test_a_region_says_what_has_to_move_first() -> None:
    scaled = op("aten.mul.Tensor", [tensor(2, 4), 0.5], [tensor(80, 4)], line=77)
    step = iteration([*_chain(3), scaled, scaled, *_chain(9, start=3)])
    region = _plan(step, ("GD203", hit(3)), ("GD203", hit(4))).regions[0].region
    assert region.worthwhile
    assert region.reason == (
        "12 launches become one once aten.mul.Tensor of model.py:77 and 1 more, "
        "which can run before or after, is moved out"
    )


def test_a_hit_between_operators_only_cuts() -> None:
    plan = _plan(iteration(_chain(6)), ("GD110", hit(3, between=True)))
    assert _indices(plan) == [(0, 1, 2), (3, 4, 5)]
    assert [each.region.blocked_by for each in plan.regions] == [("GD110",), ("GD110",)]
    assert not plan.whole


@pytest.mark.parametrize("place", [0, 6])
def test_a_cut_at_either_end_leaves_one_region_that_is_not_the_whole_step(place: int) -> None:
    plan = _plan(iteration(_chain(6)), ("GD110", hit(place, between=True)))
    assert _indices(plan) == [(0, 1, 2, 3, 4, 5)]
    assert plan.regions[0].region.blocked_by == ("GD110",)
    assert not plan.whole


def test_what_only_slows_a_replay_cuts_nothing() -> None:
    plan = _plan(iteration(_chain(6)), ("GD301", hit(3)))
    assert plan.whole
    assert _indices(plan) == [(0, 1, 2, 3, 4, 5)]


def test_random_operators_keep_their_order() -> None:
    def draw(storage: int) -> Op:
        tags = ["nondeterministic_seeded"]
        return op(
            "aten.bernoulli.default", [tensor(storage, 4)], [tensor(storage + 1, 4)], tags=tags
        )

    plan = _plan(iteration([draw(0), draw(10), draw(20)]), ("GD205", hit(1)))
    assert _indices(plan) == [(0,), (2,)]


def test_views_and_host_operators_alone_are_no_region() -> None:
    view = op("aten.t.default", [tensor(0, 2, 2)], [tensor(0, 2, 2)])
    host = op("aten.add.Tensor", [tensor(1, 2, device="cpu")], [tensor(2, 2, device="cpu")])
    plan = _plan(iteration([view, host]))
    assert plan.regions == ()
    assert not plan.whole


def test_views_and_allocations_go_with_their_neighbours_and_leave_no_gaps() -> None:
    def view(storage: int) -> Op:
        return op("aten.view.default", [tensor(storage, 2, 2)], [tensor(storage, 4)])

    scratch = op("aten.empty.memory_format", [(4,)], [tensor(90, 4)])
    use = op("aten.add.Tensor", [tensor(3, 4), tensor(50, 4)], [tensor(4, 4)])
    step = iteration([*_chain(2), scratch, *_chain(1, start=2), _item(3), view(50), use, view(4)])
    plan = _plan(step, ("GD101", hit(4)))
    assert _indices(plan) == [(0, 1, 2, 3), (5, 6, 7)]


def test_views_before_everything_go_with_what_follows_them() -> None:
    views = [op("aten.view.default", [tensor(s, 2, 2)], [tensor(s, 4)]) for s in (50, 51)]
    plan = _plan(iteration([*views, *_chain(2), _item(2)]), ("GD101", hit(4)))
    assert _indices(plan) == [(0, 1, 2, 3)]


def test_a_view_that_is_needed_outside_stays_outside() -> None:
    view = op("aten.view.default", [tensor(50, 2, 2)], [tensor(50, 4)])
    fill = op("aten.copy_.default", [tensor(50, 4), tensor(90, 4, device="cpu")], [tensor(50, 4)],
              writes=[50])  # fmt: skip
    add = op("aten.add.Tensor", [tensor(2, 4), tensor(50, 4)], [tensor(3, 4)])
    step = iteration([*_chain(2), view, fill, add])
    assert _indices(_plan(step, ("GD104", hit(3)))) == [(0, 1, 4)]
    assert _order(step, ("GD104", hit(3))) == (2, 3, 0, 1, 4)


def test_host_operators_stay_outside_and_do_not_split() -> None:
    def host(storage: int) -> Op:
        return op(
            "aten.add.Tensor", [tensor(90, 2, device="cpu")], [tensor(storage, 2, device="cpu")]
        )

    plan = _plan(iteration([*_chain(2), host(91), *_chain(2, start=2)]))
    assert _indices(plan) == [(0, 1, 3, 4)]
    assert plan.whole


def test_what_the_host_reads_of_its_own_memory_holds_back_what_follows() -> None:
    """No rule hits the read, but the host may act on what was copied to it."""
    here = tensor(90, 1, device="cpu")
    copying = op("aten._to_copy.default", [tensor(12, 1)], [here])
    reading = op("aten._local_scalar_dense.default", [here], tags=_READ)
    plan = _plan(iteration([*_chain(12), copying, reading, *_chain(12, start=50)]))
    assert _indices(plan) == [tuple(range(13)), tuple(range(14, 26))]


def test_a_read_of_the_device_that_no_rule_hits_holds_nothing_back() -> None:
    plan = _plan(iteration([*_chain(12), _item(12), *_chain(12, start=50)]))
    assert _indices(plan) == [tuple(range(25))]


def test_a_branch_that_some_iterations_take_is_a_region_of_its_own() -> None:
    def run(index: int, module: str) -> Iteration:
        start = 100 * index
        branch = _chain(11, start=start + 11, module=module)
        ops = [*_chain(11, start=start, module="stem"), _item(start + 11), *branch]
        return iteration(ops, index=index)

    hits = [("GD101", hit(11, iteration=index)) for index in range(4)]
    plan = _plan([run(0, "left"), run(1, "right"), run(2, "left"), run(3, "right")], *hits)
    regions = [planned.region for planned in plan.regions]
    assert [(each.name, each.modules, each.iterations) for each in regions] == [
        ("A", ("stem",), (0, 1, 2, 3)),
        ("B", ("left",), (0, 2)),
        ("C", ("right",), (1, 3)),
    ]
    assert not plan.whole
    assert plan.safe_modules == ("stem", "left", "right")


def _scaling(index: int, size: int, factor: float, *, following: bool = False) -> Iteration:
    """One operator that scales, and maybe another one, by the same factor, later on."""
    x = tensor(0, size)
    ops = [op("aten.mul.Tensor", [x, factor], [tensor(1, size)]), *_chain(1, start=1)]
    if following:
        ops += [op("aten.div.Tensor", [tensor(2, 4), factor], [tensor(3, 4)]), *_chain(1, start=3)]
    return iteration(ops, index=index, inputs=[x])


def test_inputs_of_different_shapes_have_regions_of_their_own() -> None:
    assert len(_plan([_scaling(0, 4, 1.0), _scaling(1, 4, 1.0)]).regions) == 1
    plan = _plan([_scaling(0, 4, 1.0), _scaling(1, 5, 1.0), _scaling(2, 4, 1.0)])
    assert [planned.region.iterations for planned in plan.regions] == [(0, 2), (1,)]
    assert not plan.whole


def test_what_is_blocked_in_one_iteration_is_blocked_in_all() -> None:
    runs = [iteration(_chain(5), index=index) for index in range(3)]
    plan = _plan(runs, ("GD205", hit(2, iteration=1)), ("GD108", hit(4, iteration=2, between=True)))
    assert [planned.region.iterations for planned in plan.regions] == [(0, 1, 2)] * 3
    assert [planned.spans[0] for planned in plan.regions] == [(0, (0, 1)), (0, (3,)), (0, (4,))]


def test_an_operator_that_differs_in_the_wake_of_a_hit_is_blocked_too() -> None:
    runs = [_scaling(index, 4, 0.5**index, following=True) for index in range(3)]
    plan = _plan(runs, ("GD203", hit(0, iteration=1)))
    assert [planned.ops_in(0) for planned in plan.regions] == [(1,), (3,)]
    assert [planned.region.blocked_by for planned in plan.regions] == [("GD203",), ("GD203",)]
    assert [planned.region.iterations for planned in plan.regions] == [(0, 1, 2)] * 2


def test_a_hidden_difference_without_a_hit_is_not_a_whole_step() -> None:
    plan = _plan([_scaling(index, 4, 0.5**index) for index in range(2)])
    assert not plan.whole
    assert [planned.ops_in(0) for planned in plan.regions] == [(1,)]


def test_what_lasts_over_iterations_is_not_copied_but_what_moves_is() -> None:
    def run(index: int, storage: int) -> Iteration:
        kept = External(storage, "previous-iteration", "aten.add.Tensor", "cuda:0")
        return iteration(_chain(12, start=storage), index=index, externals=[kept])

    stays, moves = _plan([run(0, 0), run(1, 0)]), _plan([run(0, 0), run(1, 50)])
    savings = [plan.regions[0].region.saving_us for plan in (stays, moves)]
    assert savings[0] is not None and savings[1] is not None
    assert savings[0].mid > savings[1].mid


def test_a_region_run_twice_in_one_iteration_has_two_names() -> None:
    step = iteration([*_chain(2), _item(2), *_chain(2, start=10), _item(12), *_chain(2, start=20)])
    plan = _plan(step, ("GD101", hit(2)), ("GD101", hit(5)))
    assert [planned.region.name for planned in plan.regions] == ["A", "B", "C"]
    assert plan.regions[1].region.blocked_by == ("GD101",)


def test_few_launches_are_too_small_to_pay() -> None:
    region = _plan(iteration(_chain(1))).regions[0].region
    assert not region.worthwhile
    assert region.reason == "too small to pay: 1 launch, fewer than 10"


def test_copying_many_inputs_can_cost_more_than_the_launches() -> None:
    def add(at: int) -> Op:
        large = 1 << 22
        return op(
            "aten.add.Tensor", [tensor(at, large), tensor(at + 100, large)], [tensor(at + 200, 1)]
        )

    given = [external(at, f"inputs[{at}]") for at in range(112)]
    state = [external(at, f"model.w{at}") for at in range(112)]
    ops = [add(at) for at in range(12)]
    copied = _plan(iteration(ops, externals=given)).regions[0].region
    kept = _plan(iteration(ops, externals=state)).regions[0].region
    assert copied.reason == (
        "too small to pay: launching a graph and copying 24 inputs costs more than 12 launches"
    )
    assert copied.saving_us is not None and kept.saving_us is not None
    assert copied.saving_us.mid < 0 < kept.saving_us.high
    assert copied.saving_us.low <= copied.saving_us.mid <= copied.saving_us.high


def test_a_module_with_a_hit_is_not_safe_but_its_other_parts_are() -> None:
    step = iteration(
        [
            *_chain(1, module="net.stem"),
            _item(1, module="net.gate"),
            *_chain(1, start=1, module="net.gate.inner"),
            *_chain(1, start=2, module="net.head.a"),
            *_chain(1, start=3, module="net.head.b"),
        ]
    )
    assert _plan(step, ("GD101", hit(1))).safe_modules == ("net.stem", "net.gate.inner", "net.head")


def test_a_hit_in_the_backward_pass_leaves_modules_safe() -> None:
    back = op("aten.mul.Tensor", [tensor(1, 4)], [tensor(2, 4)], module="net", phase="backward")
    plan = _plan(iteration([*_chain(1, module="net"), back]), ("GD205", hit(1)))
    assert plan.safe_modules == ("net",)


def test_a_module_that_reaches_beyond_the_region_is_not_named_as_part_of_it() -> None:
    step = iteration([*_chain(2, module="net.a"), *_chain(2, start=2, module="net.b"), _item(4),
                      *_chain(2, start=4, module="net.b")])  # fmt: skip
    first, second = (each.region for each in _plan(step, ("GD101", hit(4))).regions)
    assert first.modules == ("net.a",)
    assert second.modules == ()


@given(STEPS, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30), max_size=1))
def test_the_planned_order_computes_the_same_and_captures_nothing_blocked(
    moves: list[tuple[int, int, int]], blocked: set[int], cuts: set[int]
) -> None:
    torch.set_num_threads(1)
    step = random_step(moves)
    stuck = {each.index for each in step.ops if is_host_read(each)}
    stuck |= {index for index in blocked if index < len(step.ops)}
    cut_at = {index for index in cuts if index <= len(step.ops)}
    hits = [("GD201", hit(index)) for index in stuck]
    hits += [("GD110", hit(index, between=True)) for index in cut_at]
    plan = _plan(step, *hits)

    order = _order(step, *hits)
    assert sorted(order) == list(range(len(step.ops)))
    inside = [set(indices) for indices in _indices(plan)]
    assert not any(stuck & region for region in inside)
    assert len(inside) <= _naive_regions(step, stuck, cut_at)
    for cut in cut_at:
        for kernels in (_kernels(step, region) for region in inside):
            assert max(kernels) < cut or min(kernels) >= cut
    assert results_in(step, order) == results_in(step, range(len(step.ops)))


def _kernels(step: Iteration, region: set[int]) -> set[int]:
    """Without what launches nothing: views and allocations may pass a cut."""
    return {index for index in region if launches(step.ops[index])}


def _naive_regions(step: Iteration, stuck: set[int], cuts: set[int]) -> int:
    """How many runs of neighbouring operators there are when nothing moves."""
    count, is_open = 0, False
    for index in range(len(step.ops)):
        if index in stuck or index in cuts:
            is_open = False
        if index not in stuck and not is_open:
            count, is_open = count + 1, True
    return count


def test_spans_of_a_region_are_kept_by_iteration() -> None:
    plan = _plan([iteration(_chain(2), index=index) for index in (3, 5)])
    (planned,) = plan.regions
    assert isinstance(planned, PlannedRegion)
    assert planned.spans == ((3, (0, 1)), (5, (0, 1)))


@dataclass(frozen=True)
class _Finding:
    rule: str
    effect: str = "capture-fails"
    location: object = None


@pytest.mark.parametrize(
    ("findings", "blocked_by"),
    [
        ([], ("GD101",)),
        ([_Finding("GD107")], ("GD107",)),  # the report lets one rule speak for the other
        ([_Finding("GD107"), _Finding("GD101")], ("GD101",)),
        ([_Finding("GD301", "replay-is-slow")], ("GD101",)),
        ([_Finding("GD107", location="elsewhere")], ("GD101",)),
    ],
)
def test_a_region_names_the_rules_that_the_report_lists(
    findings: list[_Finding], blocked_by: tuple[str, ...]
) -> None:
    ran = recording(iteration([*_chain(2), _item(2), *_chain(2, start=10)]))
    diagnosis = _Diagnosis((("GD101", hit(2)),), tuple(findings))
    plan = partition(ran, diagnosis, profile=load_profile("h100"))  # type: ignore[arg-type]
    assert [each.region.blocked_by for each in plan.regions] == [blocked_by] * 2
