"""to_fx: a recording as a torch.fx graph that computes the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_iter

from graphdoctor.partition.fx import after, to_fx
from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.recording import Opaque
from tests.support.builders import external, iteration, op, tensor
from tests.support.mini_recorder import record


def _check_same(step: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph returns, and writes into its inputs, what the step does, on other values too."""
    torch.set_num_threads(1)
    recorded = record(step, [each.clone() for each in inputs])
    graph = to_fx(recorded)
    asked = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for factor in (1, 2):
        expected_inputs = [each * factor for each in inputs]
        given_inputs = [each * factor for each in inputs]
        torch.manual_seed(0)
        expected = {_place(each): each for each in tree_iter(step(*expected_inputs))}
        torch.manual_seed(0)
        results = graph(*(_argument(node, given_inputs) for node in asked))
        for want, got in zip(expected.values(), results, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        for want, got in zip(expected_inputs, given_inputs, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    return graph


def _argument(node: torch.fx.Node, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The input that a placeholder stands for; what the host makes inside the steps here is 0."""
    external, use = node.meta["external"], node.meta["value"]
    if external is None:
        return torch.zeros(use.shape, dtype=getattr(torch, use.dtype))
    return inputs[int(external.name.removeprefix("inputs[").removesuffix("]"))]


def _place(value: torch.Tensor) -> object:
    """What makes two tensors the same value to a graph."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _views_and_writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    row = x[1]
    z = x + y
    row.add_(1)
    flat = x.reshape(-1)
    flat[:2].mul_(3)
    torch._foreach_mul_([x, z], 2.0)
    return x * z, row.sum(), z.t()


def _many_results(x: torch.Tensor, y: torch.Tensor) -> Any:
    first, second = torch.split(x, 2)
    values, places = torch.topk(y, 2)
    norm = torch.nn.functional.layer_norm(x, (4,))
    return torch.cat([first, second, norm]), values, places.to(torch.float16)


def _other_dtypes(x: torch.Tensor, y: torch.Tensor) -> Any:
    bits = x.view(torch.int32)
    x.neg_()
    return bits + 1, torch.zeros_like(y, dtype=torch.float64), y.new_full((2,), 7)


def _random(x: torch.Tensor, y: torch.Tensor) -> Any:
    noise = torch.rand_like(x)
    whole = torch.empty(3, dtype=torch.int64).random_(2, 9)
    return noise + x, whole, torch.nn.functional.dropout(y, 0.5)


def _out_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    total = torch.empty_like(x)
    torch.add(x, y, out=total)
    y.copy_(total)
    return y + 1


def _masked_gradients(x: torch.Tensor, y: torch.Tensor) -> Any:
    image, kernel = x.reshape(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    grad = torch.ones(1, 1, 3, 3)
    results = torch.ops.aten.convolution_backward.default(
        grad, image, kernel, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )
    return [each for each in results if each is not None]


def _training_step(x: torch.Tensor, y: torch.Tensor) -> Any:
    net = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 2, 2), torch.nn.BatchNorm2d(2),
        torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(2, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return *losses, *(each.detach() for each in net.parameters()), net[2].running_mean


@pytest.mark.parametrize(
    "step",
    [
        _views_and_writes,
        _many_results,
        _other_dtypes,
        _random,
        _out_argument,
        _masked_gradients,
        _training_step,
    ],
)
def test_the_graph_computes_what_the_step_computes(step: Callable[..., Any]) -> None:
    _check_same(step, [torch.arange(16.0).reshape(4, 4), torch.ones(4, 4)])


_MOVES = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12
)


@given(_MOVES)
def test_any_mix_of_views_and_writes_is_computed_right(moves: list[tuple[int, int, int]]) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        values = [x, y]
        for kind, a, b in moves:
            left, right = values[a % len(values)], values[b % len(values)]
            values.append(_MAKE[kind](left, right))
        return values[2:]

    _check_same(step, [torch.arange(9.0).reshape(3, 3), torch.ones(3, 3)])


_MAKE: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a.t(),
    lambda a, b: a.add_(b.clone()),
    lambda a, b: a.flip(0),
    lambda a, b: a.mul_(0.5),
    lambda a, b: b.detach(),
    lambda a, b: a.copy_(b.clone()),
    lambda a, b: torch.stack([a[0], b[1], a[2]]),
]


def test_a_slice_returns_what_is_used_outside_it() -> None:
    recorded = record(lambda x: (x.exp() * 2).relu() + 1, [torch.ones(3)])
    graph = to_fx(recorded, recorded.ops[1:3])
    assert [str(node.target) for node in graph.graph.nodes] == [
        "aten_exp_default", "aten.mul.Tensor", "aten.relu.default", "output",
    ]  # fmt: skip
    (result,) = graph(torch.tensor([-1.0, 2.0]))
    torch.testing.assert_close(result, torch.tensor([0.0, 4.0]))


def test_a_slice_with_a_gap_returns_what_the_operator_in_the_gap_reads() -> None:
    made = op("aten.exp.default", [tensor(0, 2)], [tensor(1, 2)])
    in_the_gap = op("aten.relu.default", [tensor(1, 2)], [tensor(2, 2)])
    last = op("aten.mul.Tensor", [tensor(1, 2), 2.0], [tensor(3, 2)])
    recorded = iteration([made, in_the_gap, last], outputs=[tensor(2, 2), tensor(3, 2)])
    graph = to_fx(recorded, [recorded.ops[0], recorded.ops[2]])
    first, second = graph(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(first, torch.tensor([0.0, 1.0]).exp())
    torch.testing.assert_close(second, first * 2)


def test_a_slice_returns_the_view_of_its_memory_that_is_used_outside_it() -> None:
    made = op("aten.exp.default", [tensor(0, 4)], [tensor(1, 4)])
    outside = op("aten.neg.default", [tensor(1, 2, offset=2)], [tensor(2, 2)])
    unrelated = op("aten.neg.default", [tensor(0, 2)], [tensor(3, 2)])
    recorded = iteration([made, outside, unrelated])
    results = to_fx(recorded, recorded.ops[:1])(torch.arange(4.0))
    assert len(results) == 1
    torch.testing.assert_close(results[0], torch.arange(4.0).exp()[2:])


def test_nodes_carry_their_operator_and_placeholders_their_origin() -> None:
    add = op("aten.add.Tensor", [tensor(0, 2), tensor(1, 2)], [tensor(2, 2)], line=7, module="m")
    recorded = iteration([add], externals=[external(0, "inputs[0]"), external(1, "model.w")])
    first, second, node, _ = to_fx(recorded).graph.nodes
    assert (first.target, second.target) == ("inputs_0", "model_w")
    assert first.meta["external"].name == "inputs[0]"
    assert node.target is torch.ops.aten.add.Tensor
    assert node.meta["location"].line == 7
    assert node.meta["op"] == recorded.ops[0]


def test_a_placeholder_is_named_after_the_first_operator_that_made_the_memory() -> None:
    made = op("aten.exp.default", [tensor(0, 2)], [tensor(1, 2)])
    changed = op("aten.relu_.default", [tensor(1, 2)], [tensor(1, 2)], writes=[1])
    reading = op("aten.mul.Tensor", [tensor(1, 2), 2.0], [tensor(2, 2)])
    ops = iteration([made, changed, reading]).ops
    first, *_ = to_fx(iteration([made, changed, reading]), [ops[2]]).graph.nodes
    assert first.target == "aten_exp_default"


def test_an_argument_whose_name_begins_with_a_digit_gets_an_underscore() -> None:
    recorded = iteration(
        [op("aten.relu.default", [tensor(0, 2)], [tensor(1, 2)])],
        externals=[external(0, "0.weight")],
    )
    first, *_ = to_fx(recorded).graph.nodes
    assert first.target == "_0_weight"


def test_a_later_read_depends_on_a_write_that_returned_nothing() -> None:
    x = tensor(0, 2)
    recorded = iteration(
        [
            op("aten._foreach_add_.Scalar", [(x,), 1.0], writes=[0]),
            op("aten.relu.default", [x], [tensor(1, 2)]),
        ]
    )
    _, write, ordered, relu, _ = to_fx(recorded).graph.nodes
    assert ordered.target is after
    assert ordered.args[1] is write
    assert relu.args == (ordered,)


def test_a_view_that_no_operator_made_is_as_strided_of_its_memory() -> None:
    recorded = iteration(
        [
            op("aten.relu.default", [tensor(0, 4)], [tensor(1, 4)]),
            op("aten.neg.default", [tensor(1, 2, offset=2)], [tensor(2, 2)]),
        ],
        outputs=[tensor(2, 2)],
    )
    graph = to_fx(recorded)
    targets = [node.target for node in graph.graph.nodes]
    assert torch.ops.aten.as_strided.default in targets
    torch.testing.assert_close(graph(torch.arange(4.0))[0], torch.tensor([-2.0, -3.0]))


def test_memory_that_is_read_as_another_dtype_is_seen_in_its_place() -> None:
    seen = tensor(1, 1, offset=1, dtype="int64")  # the last two of four numbers
    recorded = iteration(
        [
            op("aten.relu.default", [tensor(0, 4)], [tensor(1, 4)]),
            op("aten.neg.default", [seen], [tensor(2, 1, dtype="int64")]),
        ],
        outputs=[tensor(2, 1, dtype="int64")],
    )
    given = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(to_fx(recorded)(given)[0], -given.view(torch.int64)[1:])


def test_an_operator_that_this_process_does_not_know_is_named_when_run() -> None:
    call = op("mylib.fused_thing.default", [tensor(0, 2)], [tensor(1, 2), tensor(2, 2)])
    graph = to_fx(iteration([call], outputs=[tensor(2, 2)]))
    nodes = list(graph.graph.nodes)
    assert nodes[1].target.__name__ == "mylib_fused_thing_default"
    assert nodes[-2].target is operator.getitem
    with pytest.raises(CannotDoItHere, match=r"mylib\.fused_thing\.default"):
        graph(torch.ones(2))


def test_a_keyword_that_is_a_python_keyword_is_passed_by_position() -> None:
    call = op(
        "aten.uniform_.default", [tensor(0, 3)], [tensor(0, 3)], writes=[0],
        kwargs=(("from", 4.0), ("to", 5.0)),
    )  # fmt: skip
    graph = to_fx(iteration([call], outputs=[tensor(0, 3)]))
    (drawn,) = graph(torch.zeros(3))
    assert ((drawn >= 4) & (drawn < 5)).all()


def test_opaque_arguments_become_dtypes_and_devices_again() -> None:
    kwargs = (("dtype", Opaque("torch.int64")), ("device", Opaque("device(type='cpu')")))
    call = op("aten.zeros.default", [(2, 3)], [tensor(0, 2, 3, dtype="int64")], kwargs=kwargs)
    (made,) = to_fx(iteration([call], outputs=[tensor(0, 2, 3, dtype="int64")]))()
    assert made.dtype is torch.int64


def test_two_externals_of_one_name_get_different_arguments() -> None:
    add = op("aten.add.Tensor", [tensor(0, 2), tensor(1, 2)], [tensor(2, 2)])
    recorded = iteration([add], externals=[external(0, "x.y"), external(1, "x_y")])
    names = [node.target for node in to_fx(recorded).graph.nodes][:2]
    assert names == ["x_y", "x_y_1"]


def test_every_further_external_of_a_name_counts_on() -> None:
    given = [external(at, "x") for at in range(3)]
    call = op("aten.addcmul.default", [tensor(at, 2) for at in range(3)], [tensor(3, 2)])
    names = [node.target for node in to_fx(iteration([call], externals=given)).graph.nodes][:3]
    assert names == ["x", "x_1", "x_2"]


def test_what_an_operator_made_in_an_unknown_place_is_asked_for_like_an_input() -> None:
    """The schema of relu has one result; where a second one would lie, nobody can tell."""
    odd = op("aten.relu.default", [tensor(0, 2)], [tensor(1, 2), tensor(2, 2)])
    use = op("aten.neg.default", [tensor(2, 2)], [tensor(3, 2)])
    graph = to_fx(iteration([odd, use], outputs=[tensor(3, 2)]))
    kinds = [node.op for node in graph.graph.nodes]
    assert kinds == ["placeholder"] * 2 + ["call_function"] * 2 + ["output"]
    (found,) = graph(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert torch.equal(found, torch.tensor([-3.0, -4.0]))


def test_a_graph_of_marks_for_a_profiler_is_empty() -> None:
    mark = op("profiler._record_function_enter_new.default", [], [])
    made = op("aten.relu.default", [tensor(0, 2)], [tensor(1, 2)])
    recorded = iteration([made, mark], outputs=[tensor(1, 2)])
    assert [node.op for node in to_fx(recorded, recorded.ops[1:]).graph.nodes] == ["output"]
