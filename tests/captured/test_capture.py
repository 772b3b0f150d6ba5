"""`graphdoctor.capture`: replays where everything is as it was captured, eager everywhere else."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.module import drop_in_of
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.errors import UsageError, UserCodeError
from tests.support.drop_in_models import (
    Answer,
    Branching,
    Pair,
    Scaled,
    assert_equal,
    on_device,
    rand,
    replayed,
)
from tests.support.emulated import device as device


@pytest.fixture
def model(device: EmulatedDevice) -> Any:
    return on_device(Scaled())


@pytest.fixture
def fast(model: Any) -> Any:
    return graphdoctor.capture(model, rand(5, 4))


def why(fast: Any) -> str:
    return next(reversed(fast.fallbacks))


class Attending(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.project, self.dropout = nn.Linear(8, 8), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.project(x)
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=self.dropout)


@pytest.mark.parametrize(("dropout", "repeats"), [(0.0, True), (0.5, False)])
def test_attention_may_run_for_nothing_unless_it_drops_something(
    device: EmulatedDevice, dropout: float, repeats: bool
) -> None:
    """Only a graph that repeats itself is launched before the whole model was looked at."""
    fast = graphdoctor.capture(on_device(Attending(dropout)), rand(2, 4, 6, 8))
    (graph,) = drop_in_of(fast).replays.graphs
    assert graph.traits.repeats is repeats


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


class TestState:
    def test_values_of_weights_are_seen(self, fast: Any, model: Any) -> None:
        with torch.no_grad():
            model.first.weight.add_(1)
        assert_equal(fast, model, rand(5, 4))
        model.load_state_dict(on_device(Scaled()).state_dict())
        assert_equal(fast, model, rand(5, 4))
        torch.optim.SGD(fast.parameters(), lr=0.1).step()
        model.shift.fill_(7)
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 3

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("model.first.weight = nn.Parameter(rand(6, 4))", "first"),
            ("model.first.weight.data = rand(6, 4)", "model.first.weight lies in other memory"),
            ("model.shift = rand(3)", "shift"),
            ("model.second = nn.Linear(6, 3).cuda()", "second"),
            ("model.scale = 3.0", "model.scale changed from 2.0 to 3.0"),
            ("model.scale = 2", "model.scale changed from 2.0 to 2"),
            ("model.sizes.append(4)", "model.sizes changed"),
            ("model.settings['power'] = 2.0", "model.settings.power changed from 1.0 to 2.0"),
            ("model.train()", "model.training changed from False to True"),
            ("model.second.train()", "model.second.training changed"),
            ("model.first.register_forward_hook(lambda m, i, o: o * 2)", "hook was registered"),
            ("model.register_forward_pre_hook(lambda m, i: (i[0] * 2,))", "hook was registered"),
            ("model.first.forward = lambda x: x @ torch.ones(4, 6, device='cuda')", "forward"),
            ("model.first.bias = None", "bias"),
            ("torch.nn.utils.parametrizations.weight_norm(model.first)", "first"),
        ],
    )
    def test_a_change_is_eager_and_named(
        self, fast: Any, model: Any, change: str, message: str
    ) -> None:
        assert_equal(fast, model, rand(5, 4))
        exec(change, {"model": model, "nn": nn, "rand": rand, "torch": torch})
        for _ in range(3):
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1 and message in why(fast)

    def test_the_graph_is_used_again_when_a_change_is_taken_back(
        self, fast: Any, model: Any
    ) -> None:
        model.train()
        assert_equal(fast, model, rand(5, 4))
        model.eval()
        assert_equal(fast, model, rand(5, 4))
        handle = model.register_forward_hook(lambda m, i, o: o + 1)
        assert_equal(fast, model, rand(5, 4))
        handle.remove()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2

    def test_an_equal_value_put_in_anew_is_no_change(self, fast: Any, model: Any) -> None:
        model.scale = float("2.0")
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1

    def test_a_tensor_of_one_element_is_known_by_identity(self, device: EmulatedDevice) -> None:
        class One(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.full((), 2.0, device="cuda")

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        model = One()
        fast = graphdoctor.capture(model, rand(3))
        model.factor = torch.full((), 2.0, device="cuda")
        model.factor.fill_(5)
        assert_equal(fast, model, rand(3))
        model.factor = torch.full((), 2.0, device="cuda")
        assert_equal(fast, model, rand(3))
        model.factor.fill_(6)
        assert_equal(fast, model, rand(3))
        assert replayed(fast) == 0

    def test_globals_and_closures_of_the_users_are_watched(self, device: EmulatedDevice) -> None:
        closed = 2.0

        class Reads(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * closed + _GLOBAL

        global _GLOBAL
        model = Reads()
        fast = graphdoctor.capture(model, rand(3))
        assert_equal(fast, model, rand(3))
        closed = 3.0
        assert_equal(fast, model, rand(3))
        assert replayed(fast) == 1 and "closed" in why(fast)
        fast, before = graphdoctor.capture(model, rand(3)), _GLOBAL
        try:
            _GLOBAL = 7.0
            assert_equal(fast, model, rand(3))
        finally:
            _GLOBAL = before
        assert replayed(fast) == 0 and "_GLOBAL changed from 1.0 to 7.0" in why(fast)

    def test_a_method_that_is_replaced_in_the_class(self, device: EmulatedDevice) -> None:
        class Patched(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

        model = Patched()
        fast = graphdoctor.capture(model, rand(3))
        Patched.forward = lambda self, x: x * 3  # type: ignore[method-assign]
        assert_equal(fast, model, rand(3))
        assert replayed(fast) == 0


_GLOBAL = 1.0


class TestModes:
    def test_wanted_gradients_are_eager(self, fast: Any, model: Any) -> None:
        fast(rand(5, 4)).sum().backward()
        assert model.first.weight.grad is not None and "gradients are wanted" in why(fast)

    def test_a_frozen_model_is_replayed_with_gradients_enabled(self, model: Any) -> None:
        model.requires_grad_(False)
        fast = graphdoctor.capture(model, rand(5, 4))
        given = rand(5, 4)
        assert torch.equal(fast(given), model(given)) and replayed(fast) == 1
        assert fast(given.requires_grad_()).requires_grad
        model.first.weight.requires_grad_()
        assert fast(given.detach()).requires_grad and replayed(fast) == 1

    def test_autocast_is_eager(self, fast: Any, model: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 0 and "autocast changed from False to True" in why(fast)

    def test_captured_under_autocast(self, model: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            fast = graphdoctor.capture(model, rand(5, 4))
            assert_equal(fast, model, rand(5, 4))
            with torch.no_grad():
                model.first.weight.mul_(2)
            torch.clear_autocast_cache()
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2

    @pytest.mark.parametrize(
        ("setting", "back"),
        [
            (lambda: torch.set_default_dtype(torch.float64),) * 1
            + (lambda: torch.set_default_dtype(torch.float32),),
            (
                lambda: torch.use_deterministic_algorithms(True),
                lambda: torch.use_deterministic_algorithms(False),
            ),
        ],
    )
    def test_switches_of_torch(self, fast: Any, model: Any, setting: Any, back: Any) -> None:
        given = rand(5, 4)
        setting()
        try:
            assert_equal(fast, model, given)
        finally:
            back()
        assert replayed(fast) == 0
        assert_equal(fast, model, given)
        assert replayed(fast) == 1

    def test_a_global_hook(self, fast: Any, model: Any) -> None:
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2)
        try:
            assert_equal(fast, model, rand(5, 4))
        finally:
            handle.remove()
        assert replayed(fast) == 0 and "hook for all modules" in why(fast)

    def test_inside_vmap_it_is_eager(self, fast: Any, model: Any) -> None:
        with torch.no_grad():
            torch.vmap(fast)(rand(2, 5, 4))
        assert replayed(fast) == 0

    def test_inside_a_capture_of_the_callers(self, fast: Any, model: Any) -> None:
        static = rand(5, 4)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            answer = fast(static)
        static.copy_(rand(5, 4))
        graph.replay()
        assert torch.equal(answer, model(static)) and replayed(fast) == 0

    def test_on_another_stream(self, fast: Any, model: Any) -> None:
        side: Any = torch.cuda.Stream()
        with torch.cuda.stream(side):
            assert_equal(fast, model, rand(5, 4))
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2


class TestStateful:
    def test_buffers_that_the_forward_writes(self, device: EmulatedDevice) -> None:
        model = on_device(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).train()
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(8, 4), mode="inference")
        assert fast.plan.how == "whole"
        for _ in range(3):
            given = rand(8, 4)
            with torch.no_grad():
                assert torch.equal(fast(given), twin(given))
        assert replayed(fast) == 3
        model[1].momentum = twin[1].momentum = 0.5
        given = rand(8, 4)
        with torch.no_grad():
            assert torch.equal(fast(given), twin(given))
        assert replayed(fast) == 3
        assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))

    def test_dropout_draws_fresh_numbers_and_eagers(self, device: EmulatedDevice) -> None:
        model = on_device(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))).train()
        fast = graphdoctor.capture(model, rand(2, 4), mode="inference")
        given = rand(2, 4)
        answers = [assert_equal(fast, model, given) for _ in range(3)]
        assert not torch.equal(answers[0], answers[1]) and replayed(fast) == 3
        model[1].p = 0.9
        assert_equal(fast, model, given)
        assert replayed(fast) == 3

    def test_a_count_in_python_is_not_captured(self, device: EmulatedDevice) -> None:
        class Counting(nn.Module):
            calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.calls += 1
                return x * 2

        model = Counting()
        model.calls = 0
        fast = graphdoctor.capture(model, rand(3))
        with torch.no_grad():
            fast(rand(3))
        assert fast.plan.how == "eager" and model.calls == 1
        assert "changes model.calls in Python" in fast.explain()

    def test_a_mutated_input_is_not_captured(self, device: EmulatedDevice) -> None:
        class Mutates(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.add_(1) * 2

        fast = graphdoctor.capture(Mutates(), rand(3))
        given = torch.zeros(3, device="cuda")
        fast(given)
        assert fast.plan.how == "eager" and torch.equal(given, torch.ones(3, device="cuda"))

    def test_a_lazily_made_cache(self, device: EmulatedDevice) -> None:
        class Lazy(nn.Module):
            table: Any = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.table is None:
                    self.table = torch.arange(3.0, device=x.device)
                return x * self.table

        model = Lazy()
        fast = graphdoctor.capture(model, rand(3))
        assert fast.plan.how == "eager" and "call the model once" in fast.explain()
        assert_equal(fast, model, rand(3))
        fast = graphdoctor.capture(model, rand(3))
        assert_equal(fast, model, rand(3))
        assert fast.plan.how == "whole" and replayed(fast) == 1


class TestParts:
    def test_safe_modules_are_replayed_and_the_rest_is_eager(self, device: EmulatedDevice) -> None:
        model = on_device(Branching())
        fast = graphdoctor.capture(model, rand(5, 6))
        assert (fast.plan.how, fast.plan.modules) == ("modules", ("body",))
        assert 0.5 < fast.coverage < 1.0
        for _ in range(3):
            assert_equal(fast, model, rand(5, 6))
            assert_equal(fast, model, rand(5, 6) * 1e6)
        said = fast.explain()
        assert "GD1" in said and "drop_in_models.py:" in said and "body" in said
        assert "6 calls of graphed modules were replayed" in said

    def test_the_model_itself_stays_its_authors(self, device: EmulatedDevice) -> None:
        model = on_device(Branching())
        fast = graphdoctor.capture(model, rand(5, 6))
        assert_equal(fast, model, rand(5, 6))
        assert "forward" not in vars(model.body)

    @pytest.mark.parametrize(
        "change",
        [
            "model.body[0].weight.data = rand(6, 6)",
            "model.body[0] = nn.Linear(6, 6).cuda()",
            "model.body[2].register_forward_hook(lambda m, i, o: o * 2)",
            "model.body.train()",
            "model.head = nn.Linear(6, 3).cuda()",
        ],
    )
    def test_changes_are_seen(self, device: EmulatedDevice, change: str) -> None:
        model = on_device(Branching())
        fast = graphdoctor.capture(model, rand(5, 6))
        exec(change, {"model": model, "nn": nn, "rand": rand})
        assert_equal(fast, model, rand(5, 6))
        assert_equal(fast, model, rand(3, 6))

    def test_nothing_worth_it_runs_eagerly_and_says_why(self, device: EmulatedDevice) -> None:
        class Reads(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * x.sum().item()

        model = Reads()
        fast = graphdoctor.capture(model, rand(3))
        assert (fast.plan.how, fast.coverage) == ("eager", 0.0)
        assert "Reads runs eagerly." in fast.explain() and "GD101" in fast.explain()
        assert_equal(fast, model, rand(3))
        assert sum(fast.fallbacks.values()) == 1


class TestTraining:
    def test_forward_and_backward_are_graphs(self, device: EmulatedDevice) -> None:
        model = on_device(Deep()).train()
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(5, 6))
        assert (fast.plan.how, fast.plan.mode, fast.coverage) == ("whole", "training", 1.0)
        losses = [_train(each, steps=4) for each in (fast, twin)]
        assert losses[0] == losses[1]
        assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))
        assert not fast.fallbacks and "4 calls of graphed modules" in fast.explain()

    def test_parts_of_a_model_are_trained(self, device: EmulatedDevice) -> None:
        model = on_device(Branching()).train()
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(5, 6))
        assert (fast.plan.how, fast.plan.modules) == ("modules", ("body",))
        assert _train(fast, steps=3) == _train(twin, steps=3)
        assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))

    def test_evaluation_between_training_steps_is_eager(self, device: EmulatedDevice) -> None:
        model = on_device(Deep()).train()
        fast = graphdoctor.capture(model, rand(5, 6))
        fast.eval()
        assert_equal(fast, model, rand(5, 6))
        assert sum(fast.fallbacks.values()) == 1
        fast.train()
        fast(rand(5, 6)).sum().backward()
        assert sum(fast.fallbacks.values()) == 1

    def test_a_frozen_backbone(self, device: EmulatedDevice) -> None:
        model = on_device(Deep()).train()
        model.body[0].requires_grad_(False)
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(5, 6))
        assert _train(fast, steps=3) == _train(twin, steps=3)
        assert model.body[0].weight.grad is None


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)), nn.BatchNorm1d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x))


def _train(model: Any, *, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(steps):
        given = torch.randn(5, 6, generator=generator).cuda()
        optimizer.zero_grad()
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class TestDropIn:
    def test_it_is_the_model_but_for_its_calls(self, fast: Any, model: Any) -> None:
        assert isinstance(fast, Scaled) and isinstance(fast, nn.Module)
        assert list(fast.state_dict()) == list(model.state_dict())
        assert list(map(id, fast.parameters())) == list(map(id, model.parameters()))
        assert fast.first is model.first and fast.scale == 2.0
        fast.scale = 4.0
        assert model.scale == 4.0
        assert fast.train() is fast and model.training

    def test_in_a_larger_model(self, model: Any) -> None:
        outer = nn.Sequential(model, nn.Linear(3, 2).cuda())
        names = list(outer.state_dict())
        outer[0] = graphdoctor.capture(model, rand(5, 4))
        assert list(outer.state_dict()) == names
        with torch.no_grad():
            outer(rand(5, 4))
        assert replayed(outer[0]) == 1

    def test_copies_and_saved_ones_are_the_plain_model(self, fast: Any, model: Any) -> None:
        twin = copy.deepcopy(fast)
        assert type(twin) is Scaled and twin.first is not model.first
        assert type(copy.deepcopy(nn.Sequential(fast))[0]) is Scaled
        file = io.BytesIO()
        torch.save(fast, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is Scaled

    def test_half_and_to_are_eager_afterwards(self, fast: Any, model: Any) -> None:
        assert fast.double() is fast
        assert_equal(fast, model, rand(5, 4).double())
        assert replayed(fast) == 0
        fast.float()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 0

    def test_release(self, fast: Any, model: Any) -> None:
        assert_equal(fast, model, rand(5, 4))
        fast.release()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1 and fast.fallbacks == {"it was released": 1}
        assert "it was released" in fast.explain() and fast.coverage == 0.0

    def test_graphs_go_with_the_last_reference(self, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(5, 4))
        graph = weakref.ref(drop_in_of(fast).replays.graphs[0])
        del fast
        gc.collect()
        assert graph() is None

    def test_names_of_the_models_own_stay_the_models(self, device: EmulatedDevice) -> None:
        class Planned(Scaled):
            def release(self) -> str:
                return "the model's"

        model = on_device(Planned())
        fast = graphdoctor.capture(model, rand(5, 4))
        assert fast.release() == "the model's" and fast.plan.how == "whole"

    def test_calls_of_other_threads_are_right(self, fast: Any, model: Any) -> None:
        expected, answers = {}, {}
        given = {n: rand(5, 4) for n in range(4)}
        with torch.no_grad():
            expected = {n: model(x) for n, x in given.items()}

        def work(n: int) -> None:
            with torch.no_grad():
                answers[n] = [fast(given[n]) for _ in range(20)]

        threads = [threading.Thread(target=work, args=(n,)) for n in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(a, expected[n]) for n in given for a in answers[n])

    def test_used_twice_and_shared_weights(self, device: EmulatedDevice) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)
                self.again = self.layer
                self.tied = nn.Linear(4, 4)
                self.tied.weight = self.layer.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.tied(self.again(self.layer(x)))

        model = on_device(Twice())
        fast = graphdoctor.capture(model, rand(2, 4))
        assert_equal(fast, model, rand(2, 4))
        model.tied.weight = nn.Parameter(rand(4, 4))
        assert_equal(fast, model, rand(2, 4))
        assert replayed(fast) == 1


class TestBadInput:
    def test_a_captured_model(self, fast: Any) -> None:
        with pytest.raises(UsageError, match="captured already"):
            graphdoctor.capture(fast, rand(5, 4))

    def test_a_function(self, device: EmulatedDevice) -> None:
        with pytest.raises(UsageError, match=r"takes a torch\.nn\.Module, and got a builtin"):
            graphdoctor.capture(torch.relu, rand(3))  # type: ignore[arg-type]

    def test_wrappers(self, model: Any) -> None:
        with pytest.raises(UsageError, match=r"DataParallel.*the module inside it"):
            graphdoctor.capture(nn.DataParallel(model), rand(5, 4))
        with pytest.raises(UsageError, match="TorchScript"):
            graphdoctor.capture(torch.jit.script(nn.Linear(4, 4)), rand(5, 4))

    def test_a_graphed_model(self, device: EmulatedDevice) -> None:
        model = nn.Linear(4, 4).cuda()
        torch.cuda.make_graphed_callables(model, (rand(2, 4),))
        fast = graphdoctor.capture(model, rand(2, 4))
        assert "make_graphed_callables already" in fast.explain()

    def test_a_hook_that_was_there_before(self, model: Any) -> None:
        seen = []
        model.first.register_forward_hook(lambda m, i, o: seen.append(1))
        fast = graphdoctor.capture(model, rand(5, 4))
        assert "first has the hook" in fast.explain()
        count = len(seen)
        fast(rand(5, 4))
        assert len(seen) == count + 1

    def test_a_model_on_the_cpu(self, device: EmulatedDevice) -> None:
        fast = graphdoctor.capture(nn.Linear(3, 3), torch.randn(2, 3))
        assert "put them there" in fast.explain() and fast(torch.randn(2, 3)).shape == (2, 3)

    def test_a_model_that_fails(self, model: Any) -> None:
        with pytest.raises(UserCodeError, match="running the step failed"):
            graphdoctor.capture(model, rand(5, 5))

    def test_no_graphs(self, model: Any) -> None:
        with pytest.raises(UsageError, match="at least 1; got 0"):
            graphdoctor.capture(model, rand(5, 4), max_graphs=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_eager_and_the_emulated_verdict_is_told() -> None:
    model = nn.Linear(3, 3)
    fast = graphdoctor.capture(model, torch.randn(2, 3))
    assert fast.plan.how == "eager" and "there is no GPU here" in fast.explain()
    assert "an emulated GPU says safe" in fast.explain()
    given = torch.randn(2, 3)
    assert torch.equal(fast(given), model(given)) and fast(given).requires_grad


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, graphdoctor; assert 'torch' not in sys.modules;"
        "from graphdoctor.proof.verify import verify_whole_step;"
        "assert callable(graphdoctor.capture) and callable(graphdoctor.analyze)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_on_a_gpu_replays_equal_eager() -> None:
    model = on_device(Scaled())
    fast = graphdoctor.capture(model, rand(5, 4))
    for _ in range(5):
        given = rand(5, 4)
        with torch.no_grad():
            torch.testing.assert_close(fast(given), model(given))
    assert replayed(fast) == 5
