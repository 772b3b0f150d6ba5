"""What is graphed computes what the modules compute, call for call."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphed_twins import (
    Answer,
    Nested,
    Side,
    Twice,
    data,
    linear,
    network,
    total,
    train,
    twins,
)
from tests.support.graphed_twins import emulated as emulated


def test_training_steps_with_dropout_and_batch_statistics_are_equal() -> None:
    with twins(network) as pair:
        for step in range(5):
            pair.both(lambda side, step=step: train(side, step))
        assert pair.made.replays == 5 and not pair.reasons


def test_accumulated_gradients_are_equal() -> None:
    with twins(network) as pair:
        for step in range(7):
            pair.both(lambda side, step=step: train(side, step, steps=step % 3 == 2))
        assert pair.made.replays == 7


def test_without_protection_accumulated_gradients_are_wrong_as_in_torch() -> None:
    """pytorch/pytorch#181723: what `Gradients.move_out` is there for."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 4).cuda()
    graphed = torch.cuda.make_graphed_callables(layer, (data(),))
    gradients = []
    for seed in (1, 2):
        x = data(seed=seed)
        graphed(x).sum().backward()
        gradients.append(x.sum(0).expand(4, 8))
    assert layer.weight.grad is not None
    assert torch.allclose(layer.weight.grad, 2 * gradients[1])
    assert not torch.allclose(layer.weight.grad, gradients[0] + gradients[1])


def test_gradients_leave_the_memory_of_the_graph_before_the_next_forward_pass() -> None:
    """A GPU gives memory that a forward pass no longer needs to its backward pass; emulated memory is never shared."""
    with twins(linear) as pair:
        model = pair.graphed.model
        total(model(data(seed=1))).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert gradients and all(gradient is not None for gradient in gradients)
        before = [(g.data_ptr(), g.clone()) for g in gradients if g is not None]
        output = model(data(seed=2))
        assert [p.grad for p in model.parameters()] == gradients
        for gradient, (address, values) in zip(gradients, before, strict=True):
            assert gradient is not None and gradient.data_ptr() != address
            assert torch.equal(gradient, values)
        total(output).backward()


def test_zeroed_gradients_stay_the_same_tensors() -> None:
    with twins(linear) as pair:
        pair.both(lambda side: train(side, 1, steps=False))
        kept = [p.grad for p in pair.graphed.model.parameters()]

        def zero_and_train(side: Side) -> None:
            assert side.optimizer is not None
            side.optimizer.zero_grad(set_to_none=False)
            train(side, 2, steps=False)

        pair.both(zero_and_train)
        pair.both(zero_and_train)
        now = [p.grad for p in pair.graphed.model.parameters()]
        assert all(a is b for a, b in zip(kept, now, strict=True))


def test_gradients_that_are_asked_for_belong_to_the_caller() -> None:
    def asked(side: Side) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for seed in (1, 2):
            loss = total(side.model(data(seed=seed)))
            found += torch.autograd.grad(loss, list(side.model.parameters()))
        return found

    with twins(linear, [asked]) as pair:
        pair.both(asked)
        pair.both(asked)
        assert pair.made.replays == 4


def test_gradients_of_inputs_belong_to_the_caller() -> None:
    def of_inputs(side: Side) -> list[torch.Tensor | None]:
        inputs = [data(seed=seed).requires_grad_() for seed in (1, 2)]
        for x in inputs:
            total(side.model(x)).backward()
        return [x.grad for x in inputs]

    with twins(linear, [of_inputs]) as pair:
        pair.both(of_inputs)
        assert pair.made.replays == 2


def test_outputs_belong_to_the_caller() -> None:
    def several(side: Side) -> list[torch.Tensor]:
        return [side.look(data(seed=seed)) for seed in range(3)]

    with twins(network, [several]) as pair:
        pair.both(several)
        assert pair.made.replays == 3


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"left": self.left(x), "right": self.right(x)}


def only(side: Side, key: str, seed: int = 0) -> None:
    side.model.zero_grad(set_to_none=True)
    side.model(data(seed=seed))[key].sum().backward()


def test_an_output_without_gradient_leaves_parameters_without() -> None:
    with twins(TwoHeads, [lambda side: only(side, "left")]) as pair:
        pair.both(lambda side: only(side, "left", 1))
        assert pair.graphed.model.get_parameter("right.weight").grad is None
        assert pair.made.replays == 1


def test_an_output_that_gets_no_gradient_this_time_leaves_parameters_without() -> None:
    with twins(TwoHeads) as pair:
        pair.both(lambda side: only(side, "right", 1))
        assert pair.graphed.model.get_parameter("left.weight").grad is None
        assert pair.made.replays == 1


def test_a_gradient_that_the_graph_would_ignore_is_an_error() -> None:
    with (
        twins(TwoHeads, [lambda side: only(side, "left")]) as pair,
        pytest.raises(RuntimeError, match="A gradient came for an output"),
    ):
        only(pair.graphed, "right")


def test_a_second_backward_pass_is_an_error() -> None:
    with twins(linear) as pair:
        loss = total(pair.graphed.model(data()))
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()


def test_a_module_that_runs_twice_has_two_graphs() -> None:
    with twins(Twice, paths=["layer"]) as pair:
        assert pair.made.modules["layer"].graphs == 2
        for step in range(3):
            pair.both(lambda side, step=step: train(side, step))
        assert pair.made.replays == 6 and not pair.reasons


def test_a_call_too_many_runs_eagerly() -> None:
    with twins(Twice, paths=["layer"]) as pair:
        pair.both(lambda side: train(side, 1, times=3))
        assert pair.made.replays == 2
        assert pair.reasons == ["layer: an earlier call still waits for its backward pass"]


def test_backward_passes_may_come_in_any_order() -> None:
    def crossed(side: Side) -> None:
        losses = [total(side.model(data(seed=seed))) for seed in range(3)]
        for index in (1, 2, 0):
            losses[index].backward()

    with twins(network, [crossed]) as pair:
        pair.both(crossed)
        pair.both(crossed)
        assert pair.made.replays == 6


def test_a_forward_that_nobody_differentiates_blocks_nothing() -> None:
    def with_discarded(side: Side) -> torch.Tensor:
        side.model(data(seed=9))
        return train(side, 1)

    with twins(network) as pair:
        pair.both(with_discarded)
        assert pair.made.replays == 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_tied_weights_get_the_sum_of_their_gradients() -> None:
    with twins(Tied, paths=["first", "second"]) as pair:
        for step in range(4):
            pair.both(lambda side, step=step: train(side, step, steps=step % 2 == 1))
        assert pair.made.replays == 8


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = linear().requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def test_a_frozen_backbone_is_a_graph_without_a_backward() -> None:
    with twins(Frozen, paths=["backbone", "head"]) as pair:
        for step in range(3):
            pair.both(lambda side, step=step: train(side, step))
        assert pair.made.replays == 6 and not pair.reasons


def test_a_frozen_backbone_hands_gradients_through() -> None:
    def through(side: Side) -> torch.Tensor | None:
        x = data(seed=3).requires_grad_()
        total(side.model(x)).backward()
        return x.grad

    with twins(Frozen, [through], paths=["backbone"]) as pair:
        pair.both(through)
        assert pair.made.replays == 1


def test_keywords_nesting_and_plain_values_go_through() -> None:
    def nested(side: Side, seed: int = 0) -> Answer:
        extra = {"bias": [data(seed=seed + 5)], "name": "x"}
        answer = side.model(data(seed=seed), extra=extra, scale=0.5)
        total(answer).backward()
        return Answer(answer.logits.detach(), tuple(t.detach() for t in answer.hidden))

    with twins(Nested, [nested]) as pair:
        pair.both(nested)
        assert pair.both(lambda side: nested(side, 1)).kind == "plain"
        assert pair.made.replays == 2


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, *, states: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        return OrderedDict(out=self.layer(states))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Keywords()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(states=x)["out"]


def test_a_module_that_takes_keywords_only() -> None:
    with twins(Outer, paths=["inner"]) as pair:
        pair.both(train)
        assert pair.made.replays == 1


def test_model_outputs_of_transformers_keep_their_type() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=self.layer(x))

    def run(side: Side) -> torch.Tensor:
        found = side.model(data())
        assert type(found) is outputs.BaseModelOutput and found.hidden_states is None
        assert found[0] is found.last_hidden_state
        total(found).backward()
        return found.last_hidden_state.detach()

    with twins(Model, [run]) as pair:
        pair.both(run)
        assert pair.made.replays == 1


def test_autocast_casts_weights_anew_in_each_replay() -> None:
    def cast(side: Side, seed: int = 0) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return train(side, seed)

    with twins(linear, [cast]) as pair:
        for step in range(3):
            pair.both(lambda side, step=step: cast(side, step))
        assert pair.made.replays == 3
        pair.both(train)
        assert pair.reasons == ["autocast changed from True to False"]


class Precise(nn.Module):
    """Leaves autocast for one product, as attention does for its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.autocast("cuda", enabled=False):
            return y.float() @ y.float().t()


def test_autocast_around_a_replay_does_not_reach_into_it() -> None:
    def cast(side: Side, seed: int = 0) -> torch.Tensor:
        side.model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = total(side.model(data(seed=seed)))
        loss.backward()
        return loss.detach()

    with twins(Precise, [cast]) as pair:
        pair.both(lambda side: cast(side, 1))
        assert pair.made.replays == 1


def test_inference_mode_and_no_grad_share_a_graph() -> None:
    def inferred(side: Side) -> torch.Tensor:
        with torch.inference_mode():
            return side.model(data(seed=4)).clone()

    with twins(network, [lambda side: side.look(data())]) as pair:
        found = [inferred(side) for side in (pair.eager, pair.graphed)]
        assert found[0].shape == found[1].shape
        assert pair.made.replays == 1
