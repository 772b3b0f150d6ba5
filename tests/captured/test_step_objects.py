"""A captured step that is called with several models, each with an optimizer of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.step import CapturedStep
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.emulated import device

__all__ = ["device"]


class Layer(nn.Linear):
    """A layer that trains itself, as in Hinton's forward-forward algorithm."""

    def __init__(self) -> None:
        super().__init__(6, 6, device="cuda")
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)


def train(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    layer.optimizer.zero_grad()
    loss = layer(x).square().mean()
    loss.backward()
    layer.optimizer.step()
    return loss.detach()


def batches() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(4, 6, generator=random).cuda() for _ in range(10)]


def two_layers() -> list[Layer]:
    torch.manual_seed(0)
    return [Layer(), Layer()]


def trained(step: Callable[[Layer, torch.Tensor], torch.Tensor], *, in_turns: bool) -> list[Layer]:
    layers = two_layers()
    order = [(layer, x) for x in batches() for layer in layers]
    if not in_turns:
        order = [(layer, x) for layer in layers for x in batches()]
    for layer, x in order:
        step(layer, x)
    return layers


def weights(layers: list[Layer]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for layer in layers for parameter in layer.parameters()]


def test_each_model_with_its_optimizer_has_its_own_graphs(device: EmulatedDevice) -> None:
    for in_turns in (False, True):
        step = graphdoctor.capture(train)
        assert isinstance(step, CapturedStep)
        found = weights(trained(step, in_turns=in_turns))
        assert step.fallbacks() == {}, step.explain()
        assert step.replayed == 14  # of ten calls for each layer, three are warm-ups
        expected = weights(trained(train, in_turns=in_turns))
        assert all(map(torch.allclose, found, expected))


def test_replays_of_one_model_do_not_train_another(device: EmulatedDevice) -> None:
    step = graphdoctor.capture(train)
    first, second = trained(step, in_turns=True)
    before = copy.deepcopy([*second.parameters()])
    for x in batches():
        step(first, x)
    assert all(map(torch.equal, second.parameters(), before))


def test_an_object_without_weights_is_served_by_the_step_itself(device: EmulatedDevice) -> None:
    layer = two_layers()[0]

    @graphdoctor.capture
    def scaled(scale: object, x: torch.Tensor) -> torch.Tensor:
        return train(layer, x * scale(1.0))  # type: ignore[operator]

    def one(x: float) -> float:
        return x

    def two(x: float) -> float:
        return 2 * x

    for x in batches():
        scaled(one, x)
        scaled(two, x)
    assert isinstance(scaled, CapturedStep)
    assert not scaled._others


def test_released_graphs_are_those_of_all_models(device: EmulatedDevice) -> None:
    step = graphdoctor.capture(train)
    layers = trained(step, in_turns=True)
    assert isinstance(step, CapturedStep)
    step.release()
    assert not any(other._graphs for other in step._others)
    step(layers[1], batches()[0])
    assert [*step.fallbacks().values()] == [1]
