"""What an optimizer costs the host beside the operators that it runs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from graphdoctor.estimate.gpus import Figure, load_profile
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.values.recording import Iteration
from tests.support.builders import iteration, op, tensor

H100 = load_profile("h100")


def updates(*counts: int, each: bool = False) -> Iteration:
    """A step that trains so many parameters by one foreach operator, or by one operator each."""
    ops = [op("aten.mul.Tensor", [tensor(900, 64), 2.0], [tensor(901, 64)])]
    for run, count in enumerate(counts):
        ops.append(op("aten.mul.Tensor", [tensor(901, 64), 2.0], [tensor(902 + run, 64)]))
        uses = tuple(tensor(index, 64) for index in range(count))
        storages = [use.storage for use in uses]
        if each:
            ops += [
                op("aten.add_.Tensor", [use, use], writes=[use.storage], phase="optimizer")
                for use in uses
            ]
        else:
            args: list[Any] = [uses, uses]
            ops.append(op("aten._foreach_add_.List", args, writes=storages, phase="optimizer"))
    return iteration(ops)


def training_us(step: Iteration, **figures: float) -> float:
    """What these middle figures of the host, all others of them as they are, add to the step."""
    changed = {name: Figure(value, value, value, "a test") for name, value in figures.items()}
    without = {name: Figure(0.0, 0.0, 0.0, "a test") for name in figures}
    spent = [
        sum(
            piece.host_us.mid
            for piece in eager_pieces(
                step.ops,
                structs.replace(H100, host_us=structs.replace(H100.host_us, **costs)),
                autograd=False,
            )
        )
        for costs in (without, changed)
    ]
    return spent[1] - spent[0]


@pytest.mark.parametrize("each", [False, True])
def test_a_training_step_costs_its_optimizer_once_and_each_parameter(each: bool) -> None:
    cost = training_us(updates(7, each=each), training_step=100.0, parameter=10.0)
    assert cost == pytest.approx(100 + 7 * 10)


def test_two_optimizers_in_one_step_cost_twice() -> None:
    assert training_us(updates(3, 5), training_step=100.0, parameter=1.0) == pytest.approx(208)


def test_what_an_optimizer_computes_without_writing_it_is_no_parameter() -> None:
    """An operator that writes in place runs once for each parameter; one for a norm may run more often."""
    ops = list(updates(3, each=True).ops)
    made = op("aten.mul.Tensor", [tensor(1, 64), 2.0], [tensor(950, 64)], phase="optimizer")
    both = op("aten.lerp_.Scalar", [tensor(1, 64)], writes=[1, 2], phase="optimizer")
    step = iteration([*ops, *[made] * 5, both, both])
    assert training_us(step, parameter=10.0) == pytest.approx(3 * 10)


def test_a_step_that_does_not_train_costs_no_optimizer() -> None:
    assert training_us(updates(), training_step=100.0, parameter=10.0) == 0.0


def trained(nodes: int, parameters: int) -> Iteration:
    """A step whose backward pass has so many nodes, of two operators each, and an optimizer."""
    use = tensor(900, 64)
    ops = [
        structs.replace(
            op("aten.mul.Tensor", [use, 2.0], [use], phase="backward"), forward_index=node
        )
        for node in range(nodes)
        for _ in range(2)
    ]
    return iteration([*ops, *updates(parameters).ops[2:]])


@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_gradients_cost_each_parameter_once_whatever_number_of_nodes_makes_them(nodes: int) -> None:
    assert training_us(trained(nodes, 6), gradient=10.0) == pytest.approx(6 * 10)
    assert training_us(trained(nodes, 6), backward_node=10.0) == pytest.approx(nodes * 10)


def test_operators_of_unknown_origin_are_a_node_each() -> None:
    use = tensor(900, 64)
    lone = op("aten.mul.Tensor", [use, 2.0], [use], phase="backward")
    assert training_us(iteration([lone, lone]), backward_node=10.0) == pytest.approx(20)
