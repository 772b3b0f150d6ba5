"""What a model is captured as: the whole, parts of it, its training, or nothing."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.module import behind
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import (
    Branching,
    assert_equal,
    on_device,
    rand,
    replayed,
)
from tests.support.captured_models import fast as fast
from tests.support.captured_models import model as model
from tests.support.emulated import device as device


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
    (graph,) = behind(fast).replays.graphs
    assert graph.traits.repeats is repeats


class AddingInAnyOrder(nn.Module):
    """Differs in each run, as atomic additions do, but for its deterministic kernel; the host reads a value."""

    def __init__(self) -> None:
        super().__init__()
        layers = (each for _ in range(6) for each in (nn.Linear(8, 8), nn.Tanh()))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.are_deterministic_algorithms_enabled():
            x = x * (0.8 + int.from_bytes(os.urandom(2), "big") / 160_000)
        y: torch.Tensor = self.layers(x)
        return y if y.sum().item() > -1e9 else x


def test_parts_of_a_model_that_does_not_repeat_itself_are_proved_by_deterministic_algorithms(
    device: EmulatedDevice,
) -> None:
    fast = graphdoctor.capture(on_device(AddingInAnyOrder()), rand(4, 8), mode="inference")
    assert (fast.plan.how, fast.plan.modules) == ("modules", ("layers",)), fast.explain()


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
        assert "GD1" in said and "captured_models.py:" in said and "body" in said
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
