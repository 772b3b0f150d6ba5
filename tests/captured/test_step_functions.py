"""`capture()` of a step with functions as arguments, such as its loss: each has a graph, and its variables count."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import in_eager_and_captured

Found = list[torch.Tensor]
Wrap = Callable[[Any], Any]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_scale = torch.ones(())  # a loop replaces it


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


def _trained(wrap: Wrap, losses: list[Loss], before: Callable[[int], None] = id) -> Found:
    """A model that is trained with one loss after the other; `before` runs before each step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor, y: torch.Tensor, loss_fn: Loss) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i, loss_fn in enumerate(losses):
        before(i)
        found.append(step(_drawn(i, 4, 6), _drawn(i, 4, 3), loss_fn))
    return [*found, *(each.detach() for each in model.parameters())]


def of_torch(wrap: Wrap) -> Found:
    return _trained(wrap, [F.mse_loss] * 8)


def two_in_turns(wrap: Wrap) -> Found:
    return _trained(wrap, [F.mse_loss, F.l1_loss] * 6)


def another_one_later(wrap: Wrap) -> Found:
    return _trained(wrap, [F.mse_loss] * 6 + [F.l1_loss])


def _trained_with_weights(
    wrap: Wrap, weight_at: Callable[[int], float], first: Sequence[Loss] = ()
) -> Found:
    """Trained with a loss whose closure holds a weight, for each step another, after some losses that do not."""
    weight = 1.0

    def weighted(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(answer, y) * weight

    def before(i: int) -> None:
        nonlocal weight
        weight = weight_at(i)

    return _trained(wrap, [*first, *[weighted] * (9 if first else 10)], before)


def a_float_of_its_closure_changes(wrap: Wrap) -> Found:
    return _trained_with_weights(wrap, lambda i: 1.0 / (1 + i))


def a_float_changes_once(wrap: Wrap) -> Found:
    return _trained_with_weights(wrap, lambda i: 0.25 if i >= 7 else 1.0)


def a_float_of_a_later_one_changes(wrap: Wrap) -> Found:
    """The first call of the step did not have this function."""
    return _trained_with_weights(wrap, lambda i: 1.0 if i < 12 else 3.0, [F.mse_loss] * 6)


def a_count_of_its_closure_changes(wrap: Wrap) -> Found:
    power = 2

    def powered(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (answer - y).abs().pow(power).mean()

    def before(i: int) -> None:
        nonlocal power
        power = 2 if i < 7 else 3

    return _trained(wrap, [powered] * 10, before)


def a_global_tensor_is_replaced(wrap: Wrap) -> Found:
    def scaled(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(answer, y) * _scale

    def before(i: int) -> None:
        global _scale
        if i in (0, 7):
            _scale = torch.full((), 1.0 + i).cuda()

    return _trained(wrap, [scaled] * 10, before)


def a_tensor_of_its_closure_is_replaced(wrap: Wrap) -> Found:
    held = [torch.ones(()).cuda()]

    def scaled(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(answer, y) * held[0]

    def before(i: int) -> None:
        if i == 7:
            held[0] = torch.full((), 3.0).cuda()

    return _trained(wrap, [scaled] * 10, before)


def a_tensor_of_a_decorated_function_is_replaced(wrap: Wrap) -> Found:
    target = torch.ones(3).cuda()

    @torch.no_grad()
    def of_target(y: torch.Tensor) -> torch.Tensor:
        return y * target

    def before(i: int) -> None:
        nonlocal target
        if i == 7:
            target = torch.full((3,), 3.0).cuda()

    model = nn.Linear(6, 3).cuda()

    def add_gradients(x: torch.Tensor, y: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
        model.zero_grad()
        loss = F.mse_loss(model(x), f(y))
        loss.backward()
        return loss

    step, found = wrap(add_gradients), []
    for i in range(10):
        before(i)
        found.append(step(_drawn(i, 4, 6), _drawn(i, 4, 3), f=of_target))
    return found


def a_partial_of_torch(wrap: Wrap) -> Found:
    return _trained(wrap, [functools.partial(F.smooth_l1_loss, beta=0.5)] * 8)


def a_variable_of_the_function_of_a_partial_changes(wrap: Wrap) -> Found:
    power = 2

    def powered(answer: torch.Tensor, y: torch.Tensor, *, by: float) -> torch.Tensor:
        return (answer - y).abs().pow(power).mean() * by

    def before(i: int) -> None:
        nonlocal power
        power = 2 if i < 7 else 3

    return _trained(wrap, [functools.partial(powered, by=0.5)] * 10, before)


def a_tensor_that_a_partial_binds_is_elsewhere(wrap: Wrap) -> Found:
    weight = torch.ones(3).cuda()

    def before(i: int) -> None:
        if i == 7:
            weight.data = torch.full((3,), 3.0).cuda()

    return _trained(wrap, [functools.partial(_weighted, weight=weight)] * 10, before)


def a_list_that_a_partial_binds_changes(wrap: Wrap) -> Found:
    weights = [torch.ones(3).cuda()]

    def before(i: int) -> None:
        if i == 7:
            weights[0] = torch.full((3,), 3.0).cuda()

    loss_fn = functools.partial(
        lambda held, answer, y: _weighted(answer, y, weight=held[0]), weights
    )
    return _trained(wrap, [loss_fn] * 10, before)


def _weighted(answer: torch.Tensor, y: torch.Tensor, *, weight: torch.Tensor) -> torch.Tensor:
    return ((answer - y).square() * weight).mean()


def the_step_is_a_partial(wrap: Wrap) -> Found:
    """A variable that its function reads changes."""
    power = 2
    model = nn.Linear(6, 3).cuda()

    def add_gradients(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
        network.zero_grad()
        loss = network(x).abs().pow(power).mean()
        loss.backward()
        return loss

    step, found = wrap(functools.partial(add_gradients, model)), []
    for i in range(10):
        power = 2 if i < 7 else 3
        found.append(step(_drawn(i, 4, 6)))
    return found


def a_variable_between_two_decorators_changes(wrap: Wrap) -> Found:
    power = 2

    @torch.enable_grad()
    @functools.wraps(F.mse_loss)
    def powered(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(answer, y).pow(power)

    def before(i: int) -> None:
        nonlocal power
        power = 2 if i < 7 else 3

    return _trained(wrap, [powered] * 10, before)


def a_tensor_of_its_closure_is_written(wrap: Wrap) -> Found:
    scale = torch.ones(()).cuda()

    def scaled(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(answer, y) * scale

    return _trained(wrap, [scaled] * 10, lambda i: scale.fill_(1 + i) and None)


def it_keeps_an_average(wrap: Wrap) -> Found:
    average = torch.zeros(()).cuda()

    def relative(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(answer, y)
        average.lerp_(loss.detach(), 0.1)
        return loss / average

    return [*_trained(wrap, [relative] * 10), average]


def it_counts_its_calls(wrap: Wrap) -> Found:
    calls = 0

    def counted(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return F.mse_loss(answer, y)

    return [*_trained(wrap, [counted] * 10), torch.tensor(calls)]


def gradients_of_a_second_network_add_up(wrap: Wrap) -> Found:
    """The step never clears the gradients of the network that its function leads to."""
    torch.manual_seed(0)
    network = nn.Linear(3, 3).cuda()

    def critic(answer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(network(answer), y)

    found = _trained(wrap, [F.mse_loss] * 6 + [critic] * 8)
    assert network.weight.grad is not None
    return [*found, network.weight.grad]


def its_network_evaluates(wrap: Wrap) -> Found:
    """No dropout in some of the calls."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(1.0), nn.Linear(8, 3)).cuda()

    def ahead(x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = network(x)
        return answer

    @torch.no_grad()
    def infer(x: torch.Tensor, f: Callable[..., torch.Tensor]) -> torch.Tensor:
        return f(x) * 2

    step, found = wrap(infer), []
    for i in range(14):
        network.train(i < 7)
        found.append(step(_drawn(i, 4, 6), ahead))
    return found


@pytest.mark.parametrize(
    ("loop", "replays"),
    [
        (of_torch, 5),
        (two_in_turns, 7),
        (another_one_later, 3),
        (a_float_of_its_closure_changes, 7),
        (a_float_changes_once, 7),
        (a_float_of_a_later_one_changes, 7),
        (a_count_of_its_closure_changes, 4),
        (a_global_tensor_is_replaced, 4),
        (a_tensor_of_its_closure_is_replaced, 4),
        (a_tensor_of_a_decorated_function_is_replaced, 4),
        (a_tensor_of_its_closure_is_written, 7),
        (a_variable_between_two_decorators_changes, 4),
        (a_partial_of_torch, 5),
        (a_variable_of_the_function_of_a_partial_changes, 4),
        (a_tensor_that_a_partial_binds_is_elsewhere, 4),
        (a_list_that_a_partial_binds_changes, 4),
        (the_step_is_a_partial, 4),
        (it_keeps_an_average, 7),
        (it_counts_its_calls, 0),
        (gradients_of_a_second_network_add_up, 8),
        (its_network_evaluates, 4),
    ],
)
def test_a_step_with_a_function_is_as_in_eager(loop: Callable[[Wrap], Found], replays: int) -> None:
    with EmulatedDevice():
        expected, found, step = in_eager_and_captured(loop)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6)
    assert step.replayed == replays, step.explain()


def test_a_new_function_for_each_call_is_as_in_eager() -> None:
    """Python may reuse the id of a function that is gone."""

    def loop(wrap: Wrap) -> Found:
        def shifted(x: torch.Tensor, f: Callable[..., torch.Tensor]) -> torch.Tensor:
            return f(x) + 1

        step = wrap(shifted)
        return [step(_drawn(i, 4), lambda x, by=i: x * by) for i in range(16)]

    with EmulatedDevice():
        expected, found, _ = in_eager_and_captured(loop)
        torch.testing.assert_close(found, expected)


def test_too_many_functions_are_not_called_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(x: torch.Tensor, f: Callable[..., torch.Tensor]) -> torch.Tensor:
        return f(x) + 1

    monkeypatch.setattr("graphdoctor.captured.step._MOST_SIGNATURES", 4)
    with EmulatedDevice():
        step = graphdoctor.capture(shifted)
        kept = [lambda x, by=i: x * by for i in range(6)]
        for function in kept:
            step(_drawn(0, 4), function)
    assert "the same functions and objects in each call" in step.explain()


def test_a_method_of_a_tensor_is_refused() -> None:
    def scaled(x: torch.Tensor, by: Callable[..., torch.Tensor]) -> torch.Tensor:
        return by(x) + 1

    def loop(wrap: Wrap) -> Found:
        step, weight = wrap(scaled), _drawn(0, 4)
        return [step(_drawn(i, 4), weight.mul) for i in range(8)]

    with EmulatedDevice():
        expected, found, step = in_eager_and_captured(loop)
        torch.testing.assert_close(found, expected)
    assert step.replayed == 0
    assert "an input is a builtin_function_or_method" in step.explain()
