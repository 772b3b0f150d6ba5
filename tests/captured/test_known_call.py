"""Calls of a form that was served before are answered by one function, which lets through what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.known_call import NOT_KNOWN
from graphdoctor.captured.module import behind
from graphdoctor.captured.replays import Replays
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import fast as fast
from tests.support.captured_models import model as model
from tests.support.captured_models import on_device, rand
from tests.support.emulated import device as device


def answered(replays: Replays, *args: Any, **kwargs: Any) -> Any:
    """What the function of the last form says, without gradients."""
    with torch.no_grad():
        return replays.last(replays, args, kwargs)


@pytest.fixture
def replays(fast: Any) -> Replays:
    """Of a model that was called once."""
    with torch.no_grad():
        fast(rand(5, 4))
    return behind(fast).replays


def test_another_call_of_the_form_is_known(replays: Replays, model: Any) -> None:
    x = rand(5, 4)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(answered(replays, x), expected) and replays.replayed == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: ((rand(6, 4),), {}),
        lambda: ((rand(4, 5).t(),), {}),
        lambda: ((rand(5, 4), 1), {}),
        lambda: ((), {"x": rand(5, 4)}),
        lambda: ((rand(5, 4),), {"negate": False}),
        lambda: (([rand(5, 4)],), {}),
    ],
)
def test_a_call_of_another_form_is_not(
    replays: Replays, call: Callable[[], tuple[Any, Any]]
) -> None:
    args, kwargs = call()
    assert answered(replays, *args, **kwargs) is NOT_KNOWN and replays.replayed == 1


@pytest.mark.parametrize(
    "within",
    [
        torch.enable_grad,
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: torch.autograd.forward_ad.dual_level(),
    ],
)
def test_nor_is_one_under_other_modes(
    replays: Replays, within: Callable[[], AbstractContextManager[Any]]
) -> None:
    x = rand(5, 4)
    with torch.no_grad(), within():
        assert replays.last(replays, (x,), {}) is NOT_KNOWN
    assert answered(replays, x) is not NOT_KNOWN


def test_nor_one_while_another_is_under_way_or_after_the_release(replays: Replays) -> None:
    last, x = replays.last, rand(5, 4)
    with replays._lock:
        assert answered(replays, x) is NOT_KNOWN
    replays.release()
    with torch.no_grad():
        assert last(replays, (x,), {}) is NOT_KNOWN


def test_a_constant_and_names_are_part_of_the_form(device: EmulatedDevice) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: float, y: torch.Tensor) -> torch.Tensor:
            return x * by + y

    fast, by = graphdoctor.capture(Scaled(), rand(2), 2.0, y=rand(2)), 2.0
    with torch.no_grad():
        fast(rand(2), by, y=rand(2))
    known, (x, y) = behind(fast).replays, (rand(2), rand(2))
    assert torch.equal(answered(known, x, by, y=y), x * 2 + y)
    assert answered(known, x, 3.0, y=y) is NOT_KNOWN
    assert answered(known, x, by, z=y) is NOT_KNOWN


def test_a_graph_that_draws_random_numbers_is_not_launched_for_nothing(
    device: EmulatedDevice,
) -> None:
    model: Any = on_device(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))).train()
    fast = graphdoctor.capture(model, rand(5, 4), mode="inference")
    with torch.no_grad():
        fast(rand(5, 4))
    known, x = behind(fast).replays, rand(5, 4)
    assert answered(known, x) is not NOT_KNOWN
    model[1].p = 0.25
    before = torch.get_rng_state()
    assert answered(known, x) is NOT_KNOWN and torch.equal(torch.get_rng_state(), before)


def test_what_is_watched_anew_is_known_anew(fast: Any, model: Any) -> None:
    """A list with the same content takes another's place: the next calls are known again."""
    with torch.no_grad():
        fast(rand(5, 4))
        model.sizes = [1, 2]
        fast(rand(5, 4))
        fast(rand(5, 4))
    assert answered(behind(fast).replays, rand(5, 4)) is not NOT_KNOWN
    assert behind(fast).replays.replayed == 4 and not fast.fallbacks
    model.sizes.append(3)
    with torch.no_grad():
        fast(rand(5, 4))
    assert "sizes" in next(iter(fast.fallbacks))
