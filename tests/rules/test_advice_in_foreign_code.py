"""What is advised on code as published optimizers, solvers and scripts have it, and that code with the advice in it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.diagnosing import assert_followed, cuda, diagnosed

Example = Callable[[], object]


class TrustRatio(torch.optim.Optimizer):
    """LAMB as published code writes it: the rate of a layer is a tensor, and alpha a Python number."""

    def __init__(self, params, *, alpha):
        super().__init__(params, {"lr": 0.1})
        self.alpha = alpha

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                ratio = param.norm() / param.grad.norm()
                if self.alpha:
                    param.add_(param.grad, alpha=-group["lr"] * ratio)
                else:
                    param.add_(-group["lr"] * ratio * param.grad)


def trust_ratio(*, alpha: bool) -> object:
    model = nn.Linear(4, 4).cuda()
    optimizer = TrustRatio(model.parameters(), alpha=alpha)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer])


def larger() -> object:
    return lambda x: x / float(2) / max(x.sum(), x.std()), (cuda(8),)


def larger_on_device() -> object:
    return lambda x: x / float(2) / torch.maximum(x.sum(), x.std()), (cuda(8),)


class Sharpness(torch.optim.SGD):
    """Up to the sharpest point near, and back: by another tensor in the parameter's place."""

    def __init__(self, params, *, assigned):
        super().__init__(params, 0.1)
        self.assigned = assigned

    @torch.no_grad()
    def up(self):
        for param in self.param_groups[0]["params"]:
            self.state[param]["old"] = param.data.clone()
            param.add_(param.grad, alpha=0.01)
        self.zero_grad()

    @torch.no_grad()
    def down(self):
        for param in self.param_groups[0]["params"]:
            if self.assigned:
                param.data = self.state[param]["old"]
            else:
                param.data.copy_(self.state[param]["old"])
        self.step()
        self.zero_grad()


def sharpness(*, assigned: bool) -> object:
    model = nn.Linear(4, 4, bias=False).cuda()
    optimizer = Sharpness(model.parameters(), assigned=assigned)

    def step(x):
        model(x).square().mean().backward()
        optimizer.up()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.down()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer])


PAIRS: list[tuple[str, Example, str, Example]] = [
    (
        "GD101",
        lambda: trust_ratio(alpha=True),
        "`x.add_(scale * y)`. `alpha` takes a Python number",
        lambda: trust_ratio(alpha=False),
    ),
    ("GD101", larger, "torch.maximum(a, b)", larger_on_device),
    (
        "GD205",
        lambda: sharpness(assigned=True),
        "`param.data.copy_(self.state[param]['old'])` on line",
        lambda: sharpness(assigned=False),
    ),
]


@pytest.mark.parametrize(
    ("rule", "bad", "said", "good"), PAIRS, ids=[said for _, _, said, _ in PAIRS]
)
def test_a_step_that_follows_the_fix_has_no_finding_and_replays_right(
    rule: str, bad: Example, said: str, good: Example
) -> None:
    assert_followed(rule, bad, said, good)


def asserted(x):
    assert x.sum() < 100.0, f"too large: {x.max().item()}"
    return x * 2


def test_a_read_in_the_message_of_an_assert_leaves_the_assert_what_waits() -> None:
    (found,) = diagnosed(lambda: (asserted, (cuda(8),))).findings
    assert found.rule == "GD107"
    assert "`assert x.sum() < 100.0`" in found.message


def test_a_tensor_that_is_taken_for_a_number_unasked_is_said_to_be() -> None:
    (found,) = diagnosed(lambda: trust_ratio(alpha=True)).findings
    assert found.message.startswith("Conversion of a tensor to a Python number (aten._local_scalar")
