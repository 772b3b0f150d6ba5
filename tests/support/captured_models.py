"""Models for the tests of `graphdoctor.capture`, on the device; and a call beside its eager twin."""

from __future__ import annotations

import copy
import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.module import behind
from graphdoctor.device.emulated import EmulatedDevice

Found = TypeVar("Found")
Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    name: str = "answer"


class Scaled(nn.Module):
    """Two layers, a buffer, numbers and a configuration that the forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self.sizes = [1, 2]
        self.settings = {"power": 1.0}

    def forward(self, x: torch.Tensor, *, negate: bool = False) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) * self.scale + self.shift
        y = y * sum(self.sizes) ** self.settings["power"]
        return -y if negate else y


class Branching(nn.Module):
    """A safe body of many launches, and a branch on a value."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if y.sum().item() > 1000:
            y = y * 2
        return self.head(y)


def on_device(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.cuda().eval()


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def replayed(fast: Any) -> int:
    return behind(fast).replays.replayed


def twins(fast: Any, model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What the captured model and the plain one answer, from the same random numbers."""
    state = torch.get_rng_state()
    with torch.no_grad():
        answer = fast(*args, **kwargs)
        torch.set_rng_state(state)
        return answer, model(*args, **kwargs)


def assert_equal(fast: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Both answer the same, bit for bit; gives the answer."""
    answer, expected = twins(fast, model, *args, **kwargs)
    torch.testing.assert_close(answer, expected, rtol=0, atol=0, equal_nan=True)
    return answer


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


@pytest.fixture
def model(device: EmulatedDevice) -> Any:
    return on_device(Scaled())


@pytest.fixture
def fast(model: Any) -> Any:
    return graphdoctor.capture(model, rand(5, 4))


def why(fast: Any) -> str:
    return next(reversed(fast.fallbacks))


def in_eager_and_captured(
    loop: Callable[[Callable[[Any], Any]], Found],
) -> tuple[Found, Found, Any]:
    """What a loop finds with its step as it is and captured, from equal generators, and the captured step."""
    made: list[Any] = []

    def captured(step: Any) -> Any:
        made.append(graphdoctor.capture(step))
        return made[0]

    torch.manual_seed(0)
    expected = loop(lambda step: step)
    torch.manual_seed(0)
    return expected, loop(captured), made[0]
