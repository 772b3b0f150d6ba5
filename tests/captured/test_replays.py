"""A captured model answers as the model does, whatever its inputs are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import (
    Answer,
    Pair,
    assert_equal,
    on_device,
    rand,
    replayed,
    why,
)
from tests.support.captured_models import fast as fast
from tests.support.captured_models import model as model
from tests.support.emulated import device as device


class TestWholeForward:
    def test_new_values_are_replayed(self, fast: Any, model: Any) -> None:
        for _ in range(3):
            assert_equal(fast, model, rand(5, 4))
        assert (replayed(fast), fast.fallbacks) == (3, {})

    def test_plan_coverage_and_explanation_say_it_is_one_graph(self, fast: Any) -> None:
        assert (fast.plan.how, fast.coverage) == ("whole", 1.0)
        assert (
            f"Scaled is replayed as one graph, of {fast.plan.launches} launches" in fast.explain()
        )

    def test_capturing_leaves_model_generator_and_inputs_as_they_were(self, model: Any) -> None:
        before = copy.deepcopy(model.state_dict())
        given = rand(5, 4)
        values, generator = given.clone(), torch.get_rng_state()
        graphdoctor.capture(model, given)
        assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
        assert torch.equal(given, values) and torch.equal(generator, torch.get_rng_state())

    def test_outputs_belong_to_the_caller(self, fast: Any, model: Any) -> None:
        one = assert_equal(fast, model, rand(5, 4))
        kept = one.clone()
        assert_equal(fast, model, rand(5, 4))
        assert torch.equal(one, kept)

    def test_without_clones_the_next_call_writes_over_outputs(self, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(5, 4), clone_outputs=False)
        with torch.no_grad():
            one = fast(rand(5, 4))
            two = fast(rand(5, 4))
        assert torch.equal(one, two)

    def test_an_answer_that_was_lent_may_be_the_next_input_of_a_changed_model(
        self, device: EmulatedDevice
    ) -> None:
        layer: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("cuda")
        fast = graphdoctor.capture(layer, rand(5, 4), clone_outputs=False)
        with torch.no_grad():
            lent = fast(rand(5, 4))
            expected = layer[0](lent)
            layer[1] = nn.Identity()
            assert torch.equal(fast(lent), expected)

    def test_inference_mode_is_served_too(self, fast: Any, model: Any) -> None:
        given = rand(5, 4)
        with torch.inference_mode():
            answer, expected = fast(given), model(given)
        assert torch.equal(answer, expected) and answer.is_inference() and replayed(fast) == 1
        with torch.inference_mode():
            inner = rand(5, 4)
        assert_equal(fast, model, inner)
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 3

    def test_captured_within_inference_mode(self, model: Any) -> None:
        with torch.inference_mode():
            fast = graphdoctor.capture(model, rand(5, 4))
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1


class TestInputs:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (lambda: (rand(6, 4),), "shape of inputs[0] changed from (5, 4) to (6, 4)"),
            (lambda: (rand(4, 5).t(),), "strides of inputs[0] changed from (4, 1) to (1, 5)"),
        ],
    )
    def test_another_make_is_eager_and_says_what_changed(
        self, fast: Any, model: Any, given: Any, message: str
    ) -> None:
        assert_equal(fast, model, *given())
        assert message in why(fast) and replayed(fast) == 0
        assert message in fast.explain()

    def test_another_dtype_fails_as_eager_fails(self, fast: Any) -> None:
        with torch.no_grad(), pytest.raises(RuntimeError):
            fast(rand(5, 4).double())
        assert "dtype of inputs[0] changed" in why(fast)

    def test_a_constant_that_changed_is_eager(self, fast: Any, model: Any) -> None:
        assert_equal(fast, model, rand(5, 4), negate=True)
        assert "captured without inputs.negate" in why(fast)

    def test_constants_are_told_apart_by_type_and_sign(self, device: EmulatedDevice) -> None:
        class Times(nn.Module):
            def forward(self, x: torch.Tensor, factor: Any) -> torch.Tensor:
                return x * factor + x.sum()

        model = Times()
        given = torch.arange(4, device="cuda")
        fast = graphdoctor.capture(model, given, 1)
        assert assert_equal(fast, model, given, 1.0).dtype == torch.float32
        assert_equal(fast, model, given, True)
        assert replayed(fast) == 0

    def test_a_bounded_set_of_graphs(self, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(5, 4), max_graphs=2)
        for rows in (6, 5, 6, 7, 5):
            assert_equal(fast, model, rand(rows, 4))
        assert replayed(fast) == 4 and sum(fast.fallbacks.values()) == 1

    def test_no_further_graph_of_a_model_with_hooks(self, fast: Any, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(5, 4), max_graphs=2)
        seen: list[int] = []
        model.first.register_forward_hook(lambda m, i, o: seen.append(1))
        for _ in range(2):
            with torch.no_grad():
                fast(rand(6, 4))
        assert len(seen) == 2 and "has the hook" in why(fast)

    def test_the_same_tensor_twice_is_another_call_than_two_tensors(
        self, device: EmulatedDevice
    ) -> None:
        class Attend(nn.Module):
            def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                return query * 2 if query is key else query @ key.t()

        model, x = Attend(), rand(3, 3)
        fast = graphdoctor.capture(model, x, x)
        assert_equal(fast, model, x, x)
        assert_equal(fast, model, x, rand(3, 3))
        assert replayed(fast) == 1

    def test_kwargs_nested_inputs_and_outputs(self, device: EmulatedDevice) -> None:
        class Nested(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, *, batch: dict[str, Any], pair: Pair) -> Answer:
                y = self.layer(batch["x"]) + pair.first
                return Answer(y, (y * 2, batch["more"][0] + pair.second), "fine")

        model = on_device(Nested())

        def inputs() -> dict[str, Any]:
            return {
                "batch": {"x": rand(2, 4), "more": [rand(3)]},
                "pair": Pair(rand(4), rand(3)),
            }

        fast = graphdoctor.capture(model, **inputs())
        given = inputs()
        with torch.no_grad():
            answer, expected = fast(**given), model(**given)
        assert type(answer) is Answer and type(answer.hidden) is tuple and answer.name == "fine"
        assert torch.equal(answer.logits, expected.logits)
        assert all(map(torch.equal, answer.hidden, expected.hidden))
        assert replayed(fast) == 1

    def test_outputs_that_are_the_input_or_state_stay_themselves(
        self, device: EmulatedDevice
    ) -> None:
        class Passing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

            def forward(self, x: torch.Tensor) -> Any:
                return x, self.weight, x * self.weight

        model = on_device(Passing())
        fast = graphdoctor.capture(model, rand(3))
        given = rand(3)
        answer = assert_equal(fast, model, given)
        assert answer[0] is given and answer[1] is model.weight and replayed(fast) == 1

    def test_outputs_keep_their_strides_and_shared_memory(self, device: EmulatedDevice) -> None:
        class Views(nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                y = x * 2
                return y, y[0], y[:, ::2], y.t(), y

        model = Views()
        fast = graphdoctor.capture(model, rand(4, 4))
        answer = assert_equal(fast, model, rand(4, 4))
        expected = model(rand(4, 4))
        assert [t.stride() for t in answer] == [t.stride() for t in expected]
        assert answer[0] is answer[4]
        assert answer[0].data_ptr() == answer[1].data_ptr() and replayed(fast) == 1

    def test_an_expanded_input(self, device: EmulatedDevice, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(1, 4).expand(5, 4))
        assert_equal(fast, model, rand(1, 4).expand(5, 4))
        assert replayed(fast) == 1
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1

    def test_a_sparse_input_is_eager(self, device: EmulatedDevice) -> None:
        class Sums(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.sum()

        model = Sums()
        fast = graphdoctor.capture(model, rand(3, 3))
        sparse = rand(3, 3).to_sparse()
        with torch.no_grad():
            torch.testing.assert_close(fast(sparse), model(sparse))
        assert replayed(fast) == 0 and "layout" in why(fast)

    def test_a_sparse_input_beside_a_dense_one_is_eager(self, device: EmulatedDevice) -> None:
        class Convolution(nn.Module):
            def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
                return torch.sparse.mm(adjacency, x)

        x, adjacency = rand(3, 3), rand(3, 3).to_sparse().coalesce()
        fast = graphdoctor.capture(Convolution(), x, adjacency)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, adjacency), adjacency @ x)
        assert replayed(fast) == 0 and "layout" in why(fast)

    def test_what_may_hide_a_tensor_is_not_captured(self, device: EmulatedDevice) -> None:
        class Box:
            def __init__(self, value: torch.Tensor) -> None:
                self.value = value

        class Boxed(nn.Module):
            def forward(self, box: Box) -> torch.Tensor:
                return box.value * 2

        model, box = Boxed(), Box(rand(3))
        fast = graphdoctor.capture(model, box)
        assert fast.plan.how == "eager" and "an input is a Box" in fast.explain()
        box.value = rand(3)
        assert_equal(fast, model, box)
