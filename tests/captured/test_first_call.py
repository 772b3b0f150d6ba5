"""`capture` without inputs studies the first call of its kind when it comes."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured import study
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.calls.tally import kept_tallies
from tests.support.captured_models import on_device, rand
from tests.support.emulated import device as device


def model() -> nn.Sequential:
    layers = [layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1))]
    return on_device(nn.Sequential(*layers))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, given: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model(given).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_training_goes_on_bit_for_bit_from_the_call_that_is_captured(
    device: EmulatedDevice,
) -> None:
    own = model().train()
    twin = copy.deepcopy(own)
    fast = graphdoctor.capture(own, mode="training")
    assert (fast.plan.how, type(fast).__name__) == ("eager", "Sequential")
    assert "first call" in fast.explain()
    with torch.no_grad():
        fast(rand(2, 4))  # an evaluation before training: not what it waits for
    assert fast.plan.how == "eager"
    batches = [rand(2, 4) for _ in range(4)]
    losses = []
    for each in (twin, fast):
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(each.parameters())
        losses.append([step(each, optimizer, batch) for batch in batches])
    assert losses[0] == losses[1]
    assert all(map(torch.equal, twin.parameters(), own.parameters()))
    assert fast.plan.how == "whole" and fast.plan.mode == "training"
    assert "4 calls of graphed modules were replayed" in fast.explain()


def test_inference_waits_for_a_call_without_gradients(device: EmulatedDevice) -> None:
    fast = graphdoctor.capture(own := model().eval(), mode="inference")
    given = rand(2, 4)
    assert fast(given).requires_grad and fast.plan.how == "eager"
    with torch.no_grad():
        assert torch.equal(fast(given), own(given)) and fast.plan.how == "whole"
        assert torch.equal(fast(given + 1), own(given + 1))
    fast.release()
    with torch.no_grad():
        assert torch.equal(fast(given), own(given))


class Failing(nn.Linear):
    fails = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise KeyError("not yet")
        return super().forward(x)


def test_a_call_that_fails_fails_as_the_model_does_and_is_not_tried_again(
    device: EmulatedDevice,
) -> None:
    fast = graphdoctor.capture(own := on_device(Failing(4, 4)).eval())
    with torch.no_grad(), pytest.raises(KeyError):
        fast(rand(2, 4))
    own.fails = False
    with torch.no_grad():
        assert torch.equal(fast(given := rand(2, 4)), own(given))
    assert fast.plan.how == "eager" and "not yet" in fast.explain()


def test_without_a_gpu_the_program_goes_on_at_once() -> None:
    fast = graphdoctor.capture(own := nn.Linear(4, 4).eval())
    given = torch.randn(2, 4)
    assert torch.equal(fast(given), own(given))
    assert "no GPU" in fast.explain()


def test_what_was_made_in_a_block_is_counted_after_it_is_gone(device: EmulatedDevice) -> None:
    with kept_tallies() as kept:
        fast = graphdoctor.capture(model().eval())
        with torch.no_grad():
            fast(rand(2, 4))
            fast(rand(2, 4))
        del fast
    assert sum(each.replayed for each in kept) == 2


@pytest.mark.gpu
def test_accumulated_gradients_are_equal_where_the_graph_reuses_memory() -> None:
    """Wide temporaries of the forward pass, whose memory the backward pass gets for gradients."""
    layers = [
        m for _ in range(3) for m in (nn.Linear(256, 256, bias=False), nn.Dropout(0.0), nn.GELU())
    ]
    torch.manual_seed(0)
    model = nn.Sequential(*layers).cuda()
    batches = [torch.randn(256, 256, device="cuda") for _ in range(3)]
    expected = []
    for module in (model, graphdoctor.capture(model, mode="training")):
        module.zero_grad()
        for batch in batches:
            module(batch).square().mean().backward()
        expected.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for eager, graphed in zip(*expected, strict=True):
        torch.testing.assert_close(graphed, eager)


def test_without_a_gpu_capture_says_once_that_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study._warn_without_gpu.cache_clear()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = graphdoctor.capture(nn.Linear(2, 2))
        step = graphdoctor.capture(lambda x: x + 1)
        assert not caught  # a program may choose its devices after it made them
        module(torch.ones(2, 2))
        step(torch.ones(2))

    (warning,) = [each for each in caught if "graphdoctor.capture()" in str(each.message)]
    assert "changes nothing here" in str(warning.message)
    assert warning.filename == __file__
