"""What hooks hold is state: it is found, saved and restored bit for bit, whatever kind of callable holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.target.state.snapshot import named_tensors, snapshot

Hook = Callable[..., None]
Register = Callable[[nn.Module, torch.optim.Optimizer, Hook], Any]


@dataclass
class Calls:
    """Counts its calls in a tensor and in Python; only a hook holds it."""

    count: torch.Tensor = field(default_factory=lambda: torch.zeros(1))
    numbers: list[int] = field(default_factory=list)

    def add(self, *args: object) -> None:
        self.count.add_(1)
        self.numbers.append(len(self.numbers))


def closure(calls: Calls) -> Hook:
    return lambda *args: calls.add()


def bound_method(calls: Calls) -> Hook:
    return calls.add


def of_partial(calls: Calls) -> Hook:
    return partial(Calls.add, calls)


REGISTER: dict[str, Register] = {
    "forward": lambda model, _, hook: model.register_forward_hook(hook),
    "forward_pre": lambda model, _, hook: model.register_forward_pre_hook(hook),
    "full_backward": lambda model, _, hook: model.register_full_backward_hook(hook),
    "full_backward_pre": lambda model, _, hook: model.register_full_backward_pre_hook(hook),
    "tensor": lambda model, _, hook: model.weight.register_hook(hook),
    "post_accumulate_grad": (
        lambda model, _, hook: model.weight.register_post_accumulate_grad_hook(hook)
    ),
    "optimizer_pre": lambda _, optimizer, hook: optimizer.register_step_pre_hook(hook),
    "optimizer_post": lambda _, optimizer, hook: optimizer.register_step_post_hook(hook),
}


@pytest.mark.parametrize("hold", [closure, bound_method, of_partial])
@pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
def test_what_a_hook_holds_is_found_and_restored(
    register: Register, hold: Callable[[Calls], Hook]
) -> None:
    model, calls = nn.Linear(3, 2), Calls()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register(model, optimizer, hold(calls))

    def step() -> None:
        model(torch.ones(4, 3, requires_grad=True)).sum().backward()
        optimizer.step()

    roots = {"model": model, "optimizer": optimizer}
    assert any(found is calls.count for found in named_tensors(roots).values())
    step()
    saved = snapshot(roots)
    step()
    assert (calls.count.item(), calls.numbers) == (2, [0, 1])
    saved.restore()
    assert (calls.count.item(), calls.numbers) == (1, [0])


def test_a_hook_that_the_step_registers_on_a_gradient_is_removed() -> None:
    weight = nn.Parameter(torch.ones(2))
    saved = snapshot({"weight": weight})
    calls = Calls()
    weight.register_post_accumulate_grad_hook(calls.add)
    saved.restore()
    weight.sum().backward()
    assert not calls.numbers


def step_in_backward(**options: Any) -> tuple[nn.Module, dict[nn.Parameter, torch.optim.Adam]]:
    """As PyTorch's tutorial has it: each gradient is used and freed in the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = {p: torch.optim.Adam([p], foreach=False, **options) for p in model.parameters()}

    def optimizer_hook(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(optimizer_hook)
    return model, optimizers


@contextmanager
def unchanged(optimizers: dict[nn.Parameter, torch.optim.Adam]) -> Iterator[None]:
    def seen() -> list[torch.Tensor]:
        return [
            tensor.detach().clone()
            for parameter, optimizer in optimizers.items()
            for tensor in (parameter, *optimizer.state[parameter].values())
        ]

    before = seen()
    yield
    after = seen()
    assert len(before) == len(after) and all(map(torch.equal, before, after))


def backward_of(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def test_an_optimizer_that_only_a_hook_holds_is_restored_after_an_analysis() -> None:
    model, optimizers = step_in_backward()
    step, data = backward_of(model), torch.randn(4, 8)
    for _ in range(3):
        step(data)
    with unchanged(optimizers):
        report = graphdoctor.analyze(step, data, device="emulated", strategies=())
    assert report.target.mode == "training"
    assert report.findings[0].rule == "GD111"
    steps = [optimizer.state[parameter]["step"] for parameter, optimizer in optimizers.items()]
    assert [count.item() for count in steps] == [3.0] * 4


def test_a_step_with_a_capturable_optimizer_in_its_hooks_is_safe() -> None:
    model, optimizers = step_in_backward(capturable=True)
    with unchanged(optimizers):
        report = graphdoctor.analyze(
            backward_of(model), torch.randn(4, 8), device="emulated", strategies=()
        )
    assert report.verdict == "safe", report.reason
