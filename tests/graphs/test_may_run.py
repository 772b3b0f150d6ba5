"""Which functions of a model its forward may run: what those for training ask for makes no call eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.guards.may_run import may_run
from tests.support.captured_models import assert_equal, rand, replayed
from tests.support.emulated import device as device


class Trained(nn.Module):
    """Its methods for training ask for gradients, which its forward never does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._scaled(self.layer(x))

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain

    @property
    def gain(self) -> float:
        return 2.0

    def norm(self) -> float:
        return sum(float(p.grad.norm()) for p in self.parameters() if p.grad is not None)

    def clip(self) -> float:
        return self.norm()


class Attending(nn.MultiheadAttention):
    """torch's forward calls a method of the user's."""

    def merge_masks(self, *args: Any) -> Any:
        return super().merge_masks(*args)

    def own(self) -> None: ...


def test_methods_that_a_forward_mentions_may_run() -> None:
    members = [Trained.forward, Trained._scaled, Trained.gain.fget, Trained.norm, Trained.clip]  # type: ignore[attr-defined]
    assert may_run(members, [Trained()]) == members[:3]


def test_what_overrides_a_library_s_method_may_run() -> None:
    methods = [Attending.merge_masks, Attending.own]
    assert may_run(methods, [Attending(4, 1)]) == methods[:1]


def test_gradients_that_only_training_asks_for_make_no_call_eager(device: EmulatedDevice) -> None:
    model = Trained().cuda().eval()
    with torch.no_grad():
        fast: Any = graphdoctor.capture(model, rand(3, 4))
    model(rand(3, 4)).sum().backward()
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 1
