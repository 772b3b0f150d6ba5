"""Graphed modules compute what the modules compute, call for call, and leave everything else alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.modules import Choices, graph_modules
from graphdoctor.target.state.snapshot import named_state, snapshot
from tests.support.graphed_twins import Side, data, total, twins


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with EmulatedDevice():
        yield
    torch.set_num_threads(threads)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 4)
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def train(side: Side, seed: int = 0, **options: Any) -> torch.Tensor:
    return side.train(data(seed=seed), **options)


def left_out(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, str]:
    """Why a module, called so and trained, was left out, and which of its children were."""
    module.cuda()

    def run() -> None:
        total(module(*args, **kwargs)).backward()

    made = graph_modules({"": module}, run, restore=snapshot({"m": module}).restore)
    made.release()
    return made.left_out


# What is graphed computes the same.


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


def test_old_gradients_are_kept_where_the_caller_chooses_to_own_them() -> None:
    def collected(side: Side) -> list[torch.Tensor | None]:
        found = []
        for seed in (1, 2):
            side.model.zero_grad(set_to_none=True)
            total(side.model(data(seed=seed))).backward()
            found += [p.grad for p in side.model.parameters()]
        return found

    with twins(linear, choices=Choices(owns_gradients=True)) as pair:
        pair.both(collected)
        assert pair.made.replays == 2


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


def test_borrowed_outputs_are_overwritten() -> None:
    with twins(
        linear, [lambda side: side.look(data())], choices=Choices(owns_outputs=False)
    ) as pair:
        first = pair.graphed.look(data(seed=1))
        second = pair.graphed.look(data(seed=2))
        assert torch.equal(first, second)


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


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
        for _ in range(times):
            x = self.layer(x)
        return x


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


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None
    kind: str = "plain"


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, *, extra: dict[str, Any] | None = None, scale: float = 1.0
    ) -> Answer:
        hidden = self.layer(x * scale)
        best = hidden.argmax(1)
        if extra is not None:
            hidden = hidden + extra["bias"][0]
        return Answer(hidden.tanh(), (hidden.relu(), best))


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


# Anything else than what was captured runs eagerly.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: data(6, 8), "the shape of inputs[0] changed from (4, 8) to (6, 8)"),
        (lambda: data(8, 4).t(), "the stride of inputs[0] changed from (8, 1) to (1, 4)"),
        (
            lambda: data().requires_grad_(),
            "the requires_grad of inputs[0] changed from False to True",
        ),
    ],
)
def test_other_inputs_run_eagerly(change: Any, reason: str) -> None:
    with twins(network) as pair:
        pair.both(lambda side: side.train(change()))
        assert pair.reasons == [reason]
        pair.both(train)
        assert pair.made.replays == 1


def test_another_dtype_runs_eagerly() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).tanh()

    with twins(Model, [lambda side: side.look(data())]) as pair:
        pair.both(lambda side: side.look(data().half()))
        assert pair.reasons == [
            "the dtype of inputs[0] changed from torch.float32 to torch.float16"
        ]


def test_another_plain_argument_runs_eagerly() -> None:
    with twins(Nested, [lambda side: train(side, scale=0.5)]) as pair:
        pair.both(lambda side: train(side, scale=0.25))
        assert pair.made.replays == 0
        assert "changed from" in pair.reasons[0]


def set_mode(side: Side, on: bool) -> None:
    side.model.train(on)


def eval_one(side: Side) -> None:
    side.model.get_submodule("2").eval()


def drop_more(side: Side) -> None:
    side.model.get_submodule("2").p = 0.9  # type: ignore[assignment]


def freeze(side: Side) -> None:
    side.model.get_submodule("0").requires_grad_(False)


def new_data(side: Side) -> None:
    layer = side.model.get_submodule("0")
    layer.weight.data = layer.weight.data * 0.5  # type: ignore[union-attr,operator]


def new_parameter(side: Side) -> None:
    layer = side.model.get_submodule("0")
    layer.weight = nn.Parameter(layer.weight.detach() * 0.5)  # type: ignore[operator]


def assigned(side: Side) -> None:
    state = {name: value.clone() + 1 for name, value in side.model.state_dict().items()}
    side.model.load_state_dict(state, assign=True)


def new_buffer(side: Side) -> None:
    norm = side.model.get_submodule("1")
    norm.running_mean = norm.running_mean + 1.0  # type: ignore[operator]


def new_layer(side: Side) -> None:
    torch.manual_seed(3)
    side.model[4] = nn.Linear(8, 4).cuda()  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda side: set_mode(side, False), "training changed from True to False"),
        (eval_one, "2.training changed from True to False"),
        (drop_more, "2.p changed from 0.3 to 0.9"),
        (freeze, "requires_grad of 0.weight changed"),
        (new_data, "0.weight lies at another address than the captured one"),
        (new_parameter, "0.weight is another object than the captured one"),
        (assigned, "0.weight is another object than the captured one"),
        (new_buffer, "1.running_mean is another object than the captured one"),
        (new_layer, "4 is another object than the captured one"),
    ],
)
def test_a_changed_module_runs_eagerly(change: Any, reason: str) -> None:
    with twins(network) as pair:
        pair.both(train)
        pair.both(change)
        pair.both(lambda side: train(side, 2, steps=False))
        assert pair.made.replays == 1
        assert pair.reasons == [reason]


class Listed(nn.Module):
    """Settings of every plain kind, in the module itself and in one inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.inner.scales, self.inner.factor = [1.0, 2.0], 2  # type: ignore[assignment]
        self.scales, self.factor = [3.0], 0.5
        self.inner.register_buffer("one", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) * self.inner.scales[-1] * self.inner.factor * self.inner.one  # type: ignore
        return y * sum(self.scales) * self.factor + len(self.inner._buffers)  # type: ignore


def appended(listed: Any) -> None:
    listed.inner.scales.append(5.0)


def replaced_then_appended(listed: Any) -> None:
    listed.inner.scales = list(listed.inner.scales)
    listed.inner.scales[0] = 7.0


def own_list(listed: Any) -> None:
    listed.scales[0] = 4.0


def equal_buffer(listed: Any) -> None:
    listed.inner.one = torch.ones(1).cuda()


def through_dict(listed: Any) -> None:
    listed.inner.__dict__["factor"] = 9


def to_tensor(listed: Any) -> None:
    listed.inner.factor = torch.ones(8).cuda()


def more(listed: Any) -> None:
    listed.inner.extra = 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (appended, "inner.scales changed from [1.0, 2.0] to [1.0, 2.0, 5.0]"),
        (replaced_then_appended, "inner.scales changed from [1.0, 2.0] to [7.0, 2.0]"),
        (own_list, "scales changed from [3.0] to [4.0]"),
        (equal_buffer, "inner.one is another object than the captured one"),
        (through_dict, "inner.factor changed from 2 to 9"),
        (to_tensor, "inner.factor changed from 2 to one Tensor"),
        (more, "inner has more or fewer attributes than when it was captured"),
    ],
)
def test_a_changed_setting_runs_eagerly(change: Any, reason: str) -> None:
    with twins(Listed) as pair:
        pair.both(train)
        pair.both(lambda side: change(side.model))
        pair.both(lambda side: train(side, 2))
        assert pair.made.replays == 1
        assert pair.reasons == [reason]


def test_settings_of_the_users_own_modules_keep_their_type() -> None:
    class Inner(nn.Module):
        factor: float = 2

        def __init__(self) -> None:
            super().__init__()
            self.factor = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    def integers(side: Side) -> torch.Tensor:
        found: torch.Tensor = side.look(torch.arange(4, device="cuda"))
        return found

    def set_factor(side: Side, factor: float) -> None:
        side.model.get_submodule("0").factor = factor  # type: ignore[assignment]

    with twins(lambda: nn.Sequential(Inner()), [integers]) as pair:
        pair.both(lambda side: set_factor(side, 2.0))
        pair.both(integers)
        assert pair.reasons == ["0.factor changed from 2 to 2.0"]
        pair.both(lambda side: set_factor(side, 2))
        pair.both(integers)
        pair.both(lambda side: set_factor(side, int("2")))
        pair.both(integers)
        assert pair.made.replays == 2


def loaded(side: Side) -> None:
    state = {name: value.clone() + 1 for name, value in side.model.state_dict().items()}
    side.model.load_state_dict(state)


def in_place(side: Side) -> None:
    with torch.no_grad():
        for parameter in side.model.parameters():
            parameter.mul_(0.5)


@pytest.mark.parametrize("change", [loaded, in_place])
def test_new_values_at_the_old_addresses_are_used(change: Any) -> None:
    with twins(network) as pair:
        pair.both(train)
        pair.both(change)
        pair.both(lambda side: train(side, 2))
        assert pair.made.replays == 2


def test_calls_in_other_modes_run_eagerly() -> None:
    with twins(network) as pair:
        pair.both(lambda side: side.look(data()))
        assert pair.reasons == ["grad mode changed from True to False"]
        pair.both(train)
        assert pair.made.replays == 1


def test_activation_checkpointing_runs_eagerly() -> None:
    def checkpointed(side: Side) -> torch.Tensor:
        x = data(seed=2).requires_grad_()
        loss = total(checkpoint(side.model, x, use_reentrant=False))
        loss.backward()
        return loss.detach()

    def plain(side: Side) -> None:
        total(side.model(data(seed=2).requires_grad_())).backward()

    with twins(linear, [plain]) as pair:
        pair.both(checkpointed)
        assert pair.made.replays == 0
        assert "activation checkpointing" in pair.reasons[0]


# Hooks.


def test_hooks_of_the_module_itself_run() -> None:
    seen: list[str] = []

    def hooked() -> nn.Module:
        model = linear()
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda _, args, output: output * 2)
        model.register_full_backward_hook(lambda *_: seen.append("backward"))
        return model

    with twins(hooked) as pair:
        seen.clear()
        pair.both(train)
        assert seen == ["before", "backward"] * 2
        assert pair.made.replays == 1


def test_a_module_with_a_hook_inside_is_left_out_and_its_children_are_not() -> None:
    seen: list[int] = []

    def hooked() -> nn.Module:
        model = linear()
        model[1].register_forward_hook(lambda *_: seen.append(1))
        return model

    with twins(hooked) as pair:
        assert pair.made.left_out == {
            "": "the Tanh inside it has a hook, which a replay would not run"
        }
        assert pair.made.paths == ("0", "1", "2")
        seen.clear()
        pair.both(train)
        assert seen == [1, 1]
        assert pair.made.replays == 3


def test_a_hook_registered_later_is_run() -> None:
    seen: list[int] = []
    with twins(linear) as pair:
        for side in (pair.eager, pair.graphed):
            side.model[0].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[index]
        pair.both(train)
        assert seen == [1, 1]
        assert pair.reasons == ["a hook was registered inside it"]


# What cannot be graphed is left out, with the reason.


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = linear(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.other(y) if y.sum().item() > 0 else y


def test_a_refused_module_is_left_out_with_its_cause_and_its_children_are_graphed() -> None:
    with twins(Reading) as pair:
        assert "the host waited for the device" in pair.made.left_out[""]
        assert "test_modules.py:" in pair.made.left_out[""]
        assert "layer" in pair.made.paths
        for step in range(3):
            pair.both(lambda side, step=step: train(side, step))
        assert pair.made.replays >= 3


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, how: str = "count") -> Any:
        if how == "write":
            x.add_(1)
        y = self.layer(x)
        if how == "count":
            self.calls += 1
        elif how == "keep":
            self.last = y.detach()
        elif how == "pass":
            return y, x
        elif how == "host":
            return y.cpu()
        elif how == "object":
            return y, object()
        return y


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("count", "its forward changes calls, which a replay would not"),
        ("keep", "its forward puts another tensor into last, as a replay would not"),
        ("write", "it writes into its input, and a graph would write into a copy"),
        ("pass", "it returns memory of its input or of its own state, of which a graph has a copy"),
        ("host", "it returns a tensor on the CPU"),
        ("object", "it returns a object, whose content a graph cannot make"),
    ],
)
def test_a_forward_with_other_effects_is_left_out(how: str, reason: str) -> None:
    assert left_out(Counting(), data(), how)[""] == reason


def test_arguments_that_cannot_be_watched_leave_a_module_out() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, other: Any) -> torch.Tensor:
            return x * 2

    x = data().requires_grad_()
    assert left_out(Model(), x, object())[""] == (
        "an argument is of type object, whose content a graph cannot watch"
    )
    assert left_out(Model(), x, torch.ones(3))[""] == (
        "an argument is a tensor on the CPU, whose values a graph would freeze"
    )


class DistributedDataParallel(nn.Module):
    """Named like torch's own, which needs a process group."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def test_wrappers_are_named() -> None:
    assert left_out(DistributedDataParallel(), data())[""] == (
        "DistributedDataParallel cannot be graphed in parts: "
        "it synchronises gradients while the backward pass runs"
    )


def test_a_compiled_module_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    # What compile() sets; the emulated device lets nothing be compiled.
    model[0]._compiled_call_impl = model[0]._call_impl
    assert left_out(model, data())[""] == "Linear is compiled by its compile() already"


def test_a_graphed_module_is_named() -> None:
    model = nn.Linear(8, 8).cuda()
    torch.cuda.make_graphed_callables(model, (data(),))
    reason = left_out(model, data())[""]
    assert reason == "Linear is graphed by make_graphed_callables already"


def test_unusable_tensors_are_named() -> None:
    with_buffer = nn.Linear(8, 8)
    with_buffer.register_buffer("kept", torch.ones(8).cuda().requires_grad_())
    assert left_out(with_buffer, data())[""] == (
        "its buffer kept requires grad, and only parameters may"
    )
    hooked = nn.Linear(8, 8)
    hooked.weight.register_hook(lambda gradient: gradient)
    assert "gradient hook" in left_out(hooked, data())[""]


def test_gradients_of_gradients_leave_a_module_out() -> None:
    model = linear().cuda()

    def run() -> None:
        x = data().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    made = graph_modules({"": model}, run, restore=snapshot({"m": model}).restore)
    assert made.left_out[""] == "its gradients are differentiated again"


def test_a_module_that_is_not_called_is_left_out() -> None:
    model = Twice().cuda()
    unused = nn.Linear(2, 2).cuda()
    run = lambda: total(model(data())).backward()  # noqa: E731
    made = graph_modules({"unused": unused}, run, restore=lambda: None)
    assert made.left_out == {"unused": "it was not called"}


# Everything else stays as it was.


def test_graphing_changes_no_state() -> None:
    torch.manual_seed(0)
    side = Side(network().cuda())
    side.train(data())
    roots = vars(side)
    before = {path: t.clone() for path, t in named_state(roots)[0].items()}
    values = named_state(roots)[1]
    generator = torch.get_rng_state()
    made = graph_modules(
        {"": side.model}, lambda: side.train(data()), restore=snapshot(roots).restore
    )
    assert made.paths == ("",)
    tensors, values_now = named_state(roots)
    assert values == values_now and list(tensors) == list(before)
    assert all(torch.equal(t, before[path]) for path, t in tensors.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_the_modules_are_put_back_as_they_were() -> None:
    with twins(linear) as pair:
        model = pair.graphed.model
        assert "forward" in model.__dict__
        pair.made.uninstall()
        assert "forward" not in model.__dict__
        pair.made.install()
        train(pair.graphed)
        assert pair.made.replays == 1
    assert "forward" not in model.__dict__
    assert pair.made.paths == ()


def test_a_forward_of_the_users_own_is_put_back_and_may_be_replaced() -> None:
    def own(x: torch.Tensor) -> torch.Tensor:
        return nn.Sequential.forward(model, x) * 3

    model = linear().cuda()
    model.forward = own  # type: ignore[method-assign]
    x = data()
    wanted = total(model(x))
    restore = snapshot({"m": model}).restore
    made = graph_modules({"": model}, lambda: total(model(x)).backward(), restore=restore)
    with made.installed():
        assert torch.equal(total(model(x)), wanted)
        assert made.replays == 1
    assert model.__dict__["forward"] is own
    model.forward = lambda x: own(x) + 1  # type: ignore[method-assign]
    with made.installed():
        assert not torch.equal(total(model(x)), wanted)
        assert made.replays == 1
