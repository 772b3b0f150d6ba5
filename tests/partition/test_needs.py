"""needs: which regions a region waits for, and what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import networkx as nx
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.estimate.gpus import load_profile
from graphdoctor.partition import PlannedRegion, partition
from graphdoctor.partition.hazards import Signatures, cutting, hazards, is_host_read
from graphdoctor.partition.partition import dependencies
from graphdoctor.partition.regions import schedule
from graphdoctor.rules.rule import Hit
from graphdoctor.values.recording import Iteration, Op
from tests.support.builders import hit, iteration, op, recording, tensor
from tests.support.random_steps import STEPS, random_step, results_in


@dataclass(frozen=True)
class _Diagnosis:
    hits: tuple[tuple[str, Hit], ...] = ()
    findings: tuple[object, ...] = ()


def _regions(
    steps: Iteration | Sequence[Iteration], *hits: tuple[str, Hit]
) -> tuple[PlannedRegion, ...]:
    runs = [steps] if isinstance(steps, Iteration) else steps
    return partition(recording(*runs), _Diagnosis(hits), profile=load_profile("h100")).regions


def _needs(
    steps: Iteration | Sequence[Iteration], *hits: tuple[str, Hit]
) -> dict[str, dict[str, tuple[str, ...]]]:
    return {
        planned.region.name: {need.region: need.rules for need in planned.region.needs}
        for planned in _regions(steps, *hits)
    }


def _graph(step: Iteration, *hits: tuple[str, Hit]) -> nx.DiGraph[str | int]:
    (found,) = hazards(recording(step), cutting(hits), Signatures())
    return dependencies(step, schedule(step.ops, found), _regions(step, *hits))


def _relu(source: int, result: int) -> Op:
    return op("aten.relu.default", [tensor(source, 4)], [tensor(result, 4)])


def _frozen(source: int, result: int) -> Op:
    return op("aten.mul.Tensor", [tensor(source, 4), 2.0], [tensor(result, 4)])


def _add(one: int, other: int, result: int) -> Op:
    return op("aten.add.Tensor", [tensor(one, 4), tensor(other, 4)], [tensor(result, 4)])


def _item(storage: int) -> Op:
    read = [tensor(storage, 1)]
    return op("aten._local_scalar_dense.default", read, tags=["data_dependent_output"])


def test_a_single_region_needs_nothing() -> None:
    assert _needs(iteration([_relu(0, 1), _relu(1, 2)])) == {"A": {}}


def test_a_region_needs_the_one_before_through_the_operator_between_them() -> None:
    step = iteration([_relu(0, 1), _frozen(1, 2), _relu(2, 3)])
    assert _needs(step, ("GD205", hit(1))) == {"A": {}, "B": {"A": ("GD205",)}}


def test_what_a_needed_region_needs_itself_is_not_repeated() -> None:
    step = iteration(
        [_relu(0, 1), _frozen(1, 2), _relu(2, 3), _frozen(3, 4), _add(4, 1, 5), _relu(5, 6)]
    )
    found = _needs(step, ("GD205", hit(1)), ("GD201", hit(3)))
    assert found == {"A": {}, "B": {"A": ("GD205",)}, "C": {"B": ("GD201",)}}


def test_a_region_behind_a_host_read_of_another_tensor_needs_no_region() -> None:
    step = iteration([_relu(0, 1), _item(50), _relu(60, 61)])
    assert _needs(step, ("GD101", hit(1))) == {"A": {}, "B": {}}


def test_a_region_behind_a_host_read_needs_the_region_that_was_read() -> None:
    step = iteration([_relu(0, 1), _item(1), _relu(60, 61)])
    assert _needs(step, ("GD101", hit(1))) == {"A": {}, "B": {"A": ("GD101",)}}


def test_a_host_read_of_another_tensor_stands_between_regions_as_well() -> None:
    step = iteration([_relu(0, 1), _item(50), _relu(1, 2)])
    assert _needs(step, ("GD101", hit(1))) == {"A": {}, "B": {"A": ("GD101",)}}


def test_what_the_host_does_between_operators_stands_between_regions() -> None:
    step = iteration([_relu(0, 1), _relu(1, 2)])
    found = _needs(step, ("GD110", hit(1, between=True)))
    assert found == {"A": {}, "B": {"A": ("GD110",)}}


def test_all_rules_between_two_regions_are_named_and_no_later_ones() -> None:
    step = iteration([_relu(0, 1), _frozen(1, 2), _item(2), _relu(2, 3), _item(3), _relu(60, 61)])
    found = _needs(step, ("GD205", hit(1)), ("GD101", hit(2)), ("GD102", hit(4)))
    assert found["B"] == {"A": ("GD101", "GD205")}
    assert found["C"] == {"B": ("GD102",)}


def test_two_regions_that_do_not_need_each_other_are_both_named() -> None:
    step = iteration([_relu(0, 1), _item(50), _relu(60, 61), _item(50), _add(1, 61, 70)])
    found = _needs(step, ("GD101", hit(1)), ("GD102", hit(3)))
    assert found["B"] == {}
    assert found["C"] == {"A": ("GD101", "GD102"), "B": ("GD102",)}


def test_needs_of_all_iterations_are_named() -> None:
    short = iteration([_relu(0, 1), _frozen(1, 2), _relu(2, 3)], index=0)
    other = op("aten.neg.default", [tensor(2, 4)], [tensor(9, 4)])
    long = iteration([_relu(0, 1), _frozen(1, 2), other, _item(9), _relu(2, 3)], index=1)
    hits = [("GD205", hit(1)), ("GD101", hit(3, iteration=1))]
    found = _needs([short, long], *hits)
    assert found["C"] == {"A": ("GD205",), "B": ("GD101",)}


def test_what_differs_in_the_wake_of_a_finding_is_put_down_to_that() -> None:
    def step(index: int, factor: float) -> Iteration:
        scaled = op("aten.mul.Tensor", [tensor(1, 4), factor], [tensor(2, 4)])
        again = op("aten.pow.Tensor_Scalar", [tensor(3, 4), factor], [tensor(4, 4)])
        return iteration([_relu(0, 1), scaled, _relu(2, 3), again, _relu(4, 5)], index=index)

    found = _needs([step(0, 2.0), step(1, 3.0)], ("GD201", hit(1)))
    assert found["C"] == {"B": ("GD201",)}


def test_hundreds_of_regions_name_one_each() -> None:
    ops: list[Op] = []
    for at in range(300):
        ops += [_add(max(at - 3, 0), at, at + 1), _item(at + 1)]
    found = _needs(iteration(ops), *(("GD101", hit(at)) for at in range(1, 600, 2)))
    assert [len(each) for each in found.values()] == [0] + [1] * 299


@given(STEPS, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30), max_size=1), st.randoms())
def test_any_order_that_follows_the_dependencies_computes_the_same(
    moves: list[tuple[int, int, int]], blocked: set[int], cuts: set[int], random: Random
) -> None:
    torch.set_num_threads(1)
    step = random_step(moves)
    stuck = {each.index for each in step.ops if is_host_read(each)}
    stuck |= {index for index in blocked if index < len(step.ops)}
    hits = [("GD201", hit(index)) for index in stuck]
    hits += [("GD110", hit(index, between=True)) for index in cuts if index <= len(step.ops)]
    regions = {planned.region.name: planned for planned in _regions(step, *hits)}

    graph = _graph(step, *hits)
    rank = {place: random.random() for place in graph}
    order: list[int] = []
    for place in nx.lexicographical_topological_sort(graph, key=rank.__getitem__):
        order += regions[place].ops_in(0) if isinstance(place, str) else [place]
    assert sorted(order) == list(range(len(step.ops)))
    assert results_in(step, order) == results_in(step, range(len(step.ops)))

    named = {(need.region, name) for name, each in regions.items() for need in each.region.needs}
    assert all(list(regions).index(source) < list(regions).index(name) for source, name in named)
    assert named == _reduced(graph)


def _reduced(graph: nx.DiGraph[str | int]) -> set[tuple[str | int, str | int]]:
    """By the textbook: the transitive reduction of which region reaches which."""
    names = [place for place in graph if isinstance(place, str)]
    reach = nx.transitive_closure_dag(graph).subgraph(names)
    return set(nx.transitive_reduction(reach).edges)
