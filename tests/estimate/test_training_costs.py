"""What an optimizer costs the host beside the operators that it runs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from graphdoctor.estimate.gpus import Figure, load_profile
from graphdoctor.estimate.hosts import load_host, on_host
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
            )
        )
        for costs in (without, changed)
    ]
    return spent[1] - spent[0]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("counts", [(7,), (3, 5)])
def test_parameters_of_every_optimizer_cost_the_engine_once(
    counts: tuple[int, ...], each: bool
) -> None:
    step = iteration([*trained(2, 1).ops[:4], *updates(*counts, each=each).ops[1:]])
    assert training_us(step, gradient=10.0) == pytest.approx(10 * sum(counts))


def test_an_optimizer_by_itself_costs_its_operators_only() -> None:
    """Where forward and backward are a graph, the call of the optimizer is all that Python does."""
    assert training_us(updates(3, 5), backward_pass=100.0, gradient=10.0) == 0.0


def test_what_an_optimizer_computes_without_writing_it_is_no_parameter() -> None:
    """An operator that writes in place runs once for each parameter; one for a norm may run more often."""
    ops = list(updates(3, each=True).ops)
    made = op("aten.mul.Tensor", [tensor(1, 64), 2.0], [tensor(950, 64)], phase="optimizer")
    both = op("aten.lerp_.Scalar", [tensor(1, 64)], writes=[1, 2], phase="optimizer")
    step = iteration([*trained(2, 1).ops[:4], *ops[1:], *[made] * 5, both, both])
    assert training_us(step, gradient=10.0) == pytest.approx(3 * 10)


def test_a_step_that_does_not_train_costs_no_engine() -> None:
    assert training_us(updates(), backward_pass=100.0, gradient=10.0) == 0.0


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


def test_the_engine_starts_once_for_each_pass_whatever_number_of_nodes_it_runs() -> None:
    use = tensor(900, 64)
    forward, back = (
        op("aten.mul.Tensor", [use, 2.0], [use], phase=phase) for phase in ("forward", "backward")
    )
    for count in (1, 2, 5):
        one_pass = iteration([forward, *[back] * count, forward])
        assert training_us(one_pass, backward_pass=100.0) == pytest.approx(100)
    two = iteration([forward, back, back, forward, back])
    assert training_us(two, backward_pass=100.0) == pytest.approx(200)


def test_operators_that_begin_inside_a_backward_pass_do_not_start_the_engine() -> None:
    """A region that is looked at by itself: the engine runs before it, and after it."""
    use = tensor(900, 64)
    back = op("aten.mul.Tensor", [use, 2.0], [use], phase="backward")
    assert training_us(iteration([back, back]), backward_pass=100.0) == 0.0


def test_the_engine_is_of_the_kind_autograd_of_a_host() -> None:
    figure = Figure(3.0, 3.0, 3.0, "a test")
    host = structs.replace(load_host("server"), name="other", autograd=figure)
    there = on_host(H100, host).host_us
    for name in ("autograd", "backward_node", "backward_pass", "gradient"):
        assert getattr(there, name).mid == pytest.approx(3 * getattr(H100.host_us, name).mid), name
    for name in ("operator", "module_call", "view", "allocation", "optimizer_foreach"):
        assert getattr(there, name) == getattr(H100.host_us, name), name
