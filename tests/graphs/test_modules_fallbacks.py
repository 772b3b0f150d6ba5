"""A call that is not what was captured, or of a module that changed, runs the original forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.graphed_twins import (
    Nested,
    Side,
    data,
    linear,
    network,
    total,
    train,
    twins,
)
from tests.support.graphed_twins import emulated as emulated
from tests.support.torch_versions import TELLS_SAVED_TENSOR_HOOKS, WHY_NO_HOOKS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda: data(6, 8),
            "The shape of inputs[0] changed from (4, 8) to (6, 8): a graph is captured for one shape.",
        ),
        (
            lambda: data(8, 4).t(),
            "The strides of inputs[0] changed from (8, 1) to (1, 4): "
            "kernels and the strides of outputs are chosen by them.",
        ),
        (
            lambda: data().requires_grad_(),
            "The requires_grad of inputs[0] changed from False to True: "
            "the backward pass is captured for one of them.",
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
            "The dtype of inputs[0] changed from torch.float32 to torch.float16: "
            "a graph is captured for one dtype."
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
        (freeze, "requires_grad of 0.weight changed from True to False"),
        (new_data, "0.weight is at another address than when it was captured"),
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
        (to_tensor, "inner.factor changed from 2 to one tensor of (8,)"),
        (more, "inner.extra changed from nothing to 1"),
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


@pytest.mark.xfail(not TELLS_SAVED_TENSOR_HOOKS, reason=WHY_NO_HOOKS, strict=True)
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


def test_a_hook_registered_later_is_run() -> None:
    seen: list[int] = []
    with twins(linear) as pair:
        for side in (pair.eager, pair.graphed):
            side.model[0].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[index]
        pair.both(train)
        assert seen == [1, 1]
        assert pair.reasons == ["a hook was registered on a module, which a replay would not run"]


class Configured(nn.Module):
    """Reads a number that lies in an object, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.config = nn.Linear(8, 8), [SimpleNamespace(scale=2.0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.config[0].scale


def test_a_change_deep_in_a_configuration_object_runs_eagerly() -> None:
    def rescale(side: Side) -> None:
        side.model.config[0].scale = 3.0  # type: ignore[index, union-attr]

    with twins(Configured) as pair:
        pair.both(train)
        pair.both(rescale)
        pair.both(lambda side: train(side, 1))
        assert pair.made.replays == 1
        assert pair.reasons == ["config[0].scale changed from 2.0 to 3.0"]


def test_another_precision_of_torch_runs_eagerly() -> None:
    with twins(linear, [lambda side: side.look(data())]) as pair:
        torch.set_float32_matmul_precision("medium")
        try:
            pair.both(lambda side: side.look(data(seed=1)))
        finally:
            torch.set_float32_matmul_precision("highest")
        assert pair.made.replays == 0 and "precision of matrix products" in pair.reasons[0]
        pair.both(lambda side: side.look(data(seed=2)))
        assert pair.made.replays == 1


class Several(nn.Module):
    """Outputs that are views of each other, with strides of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return y, y[:, ::2], y.t()


def test_outputs_keep_their_strides_and_the_memory_they_share() -> None:
    with twins(Several, [lambda side: side.look(data())]) as pair:
        found = pair.both(lambda side: side.look(data(seed=1)))
        assert pair.made.replays == 1
        assert found[0].data_ptr() == found[1].data_ptr() == found[2].data_ptr()


def test_an_expanded_input_is_copied_into_as_it_lies() -> None:
    def look(side: Side, seed: int = 0) -> Any:
        return side.look(data(1, 8, seed=seed).expand(4, 8))

    with twins(linear, [look]) as pair:
        pair.both(lambda side: look(side, 1))
        assert pair.made.replays == 1 and not pair.reasons
