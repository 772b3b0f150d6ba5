"""Calls of a form that was replayed before are replayed by one function, which lets through what it does not know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.known_call import NOT_KNOWN
from graphdoctor.captured.step_optimizers import FilledNumber
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import in_eager_and_captured, rand

CALLS = 8


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as emulated:
        yield emulated


@pytest.fixture(scope="module")
def unchanged(device: EmulatedDevice) -> Program:
    """For tests whose calls leave the program as it was."""
    return Program()


class Program:
    """A step that adds to the gradients which it finds, and a call of it that was replayed."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.settings = {"scale": 1.0}
        model, optimizer, settings = self.model, self.optimizer, self.settings

        def train_step(x: torch.Tensor, adds: bool = True) -> torch.Tensor:
            loss: torch.Tensor = model(x).square().mean() * settings["scale"]
            loss.backward()
            optimizer.step()
            return loss

        self.step: Any = graphdoctor.capture(train_step)
        for _ in range(CALLS):
            self.step(rand(5, 4))
        assert self.step.replayed and not self.step.fallbacks(), self.step.explain()

    def known(self, *args: Any, **kwargs: Any) -> object:
        """What the function of the last call returns."""
        return self.step._last(self.step, args, kwargs)

    @property
    def weight(self) -> Any:
        return self.model[0].weight


def test_another_call_of_the_form_is_known(device: EmulatedDevice) -> None:
    program = Program()
    replays = program.step.replayed
    assert isinstance(program.known(rand(5, 4)), torch.Tensor)
    assert program.step.replayed == replays + 1


def test_a_call_of_another_form_is_compared_with_the_last_one_once(device: EmulatedDevice) -> None:
    program, compared = Program(), list[object]()

    def known(owner: object, args: object, kwargs: object) -> object:
        compared.append(args)
        return NOT_KNOWN

    (key,) = program.step._known
    program.step._last = program.step._known[key] = known
    program.step(rand(6, 4))
    assert len(compared) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: ((rand(6, 4),), {}),
        lambda: ((rand(4, 5).t(),), {}),
        lambda: ((rand(5, 4).double(),), {}),
        lambda: ((rand(5, 4).cpu(),), {}),
        lambda: ((rand(5, 4), True), {}),
        lambda: ((rand(5, 4),), {"adds": True}),
        lambda: (([rand(5, 4)],), {}),
        lambda: ((), {}),
    ],
)
def test_a_call_of_another_form_is_not(
    unchanged: Program, call: Callable[[], tuple[Any, Any]]
) -> None:
    args, kwargs = call()
    assert unchanged.known(*args, **kwargs) is NOT_KNOWN
    assert unchanged.known(rand(5, 4)) is not NOT_KNOWN


@contextmanager
def _default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _hook_for_all_modules() -> Any:
    hook = nn.modules.module.register_module_forward_hook(lambda module, given, made: made * 2)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize(
    "within",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.device("meta"),
        torch.autograd.forward_ad.dual_level,
        lambda: torch.autograd.graph.save_on_cpu(),
        _default_dtype,
        _deterministic,
        _hook_for_all_modules,
    ],
)
def test_nor_is_one_under_other_modes(
    unchanged: Program, within: Callable[[], AbstractContextManager[Any]]
) -> None:
    x = rand(5, 4)
    with within():
        assert unchanged.known(x) is NOT_KNOWN
    assert unchanged.known(x) is not NOT_KNOWN


def test_a_call_in_inference_mode_is_none_without_gradients(device: EmulatedDevice) -> None:
    captured: Any = graphdoctor.capture(lambda: weight * 2.0)
    weight = rand(4)
    with torch.no_grad():
        for _ in range(CALLS):
            captured()
        assert captured._last(captured, (), {}) is not NOT_KNOWN
        with torch.inference_mode():
            assert captured._last(captured, (), {}) is NOT_KNOWN


CHANGES: dict[str, Callable[[Program], object]] = {
    "a gradient is gone": lambda p: setattr(p.weight, "grad", None),
    "a constant": lambda p: p.settings.update(scale=2.0),
    "an attribute": lambda p: setattr(p.model[1], "eps", 0.5),
    "a training flag": lambda p: p.model.eval(),
    "a parameter": lambda p: setattr(p.model[0], "weight", nn.Parameter(rand(6, 4))),
    "memory of a parameter": lambda p: setattr(p.weight, "data", rand(6, 4)),
    "a frozen parameter": lambda p: p.weight.requires_grad_(False),
    "a buffer": lambda p: setattr(p.model[1], "running_mean", rand(6)),
    "a hook": lambda p: p.model[0].register_forward_hook(lambda module, given, made: made * 2),
    "an option": lambda p: p.optimizer.param_groups[0].update(momentum=0.5),
    "a group": lambda p: p.optimizer.add_param_group({"params": [nn.Parameter(rand(2))]}),
    "a parameter of a group": lambda p: p.optimizer.param_groups[0]["params"].pop(),
    "groups": lambda p: setattr(p.optimizer, "param_groups", [*p.optimizer.param_groups]),
    "state": lambda p: setattr(p.optimizer, "state", defaultdict(dict, p.optimizer.state)),
    "an emptied state": lambda p: p.optimizer.state.clear(),
    "an entry of the state": lambda p: p.optimizer.state.update({p.weight: {}}),
    "all graphs": lambda p: p.step._forget(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_nor_is_one_after_a_change(
    device: EmulatedDevice, change: Callable[[Program], object]
) -> None:
    program = Program()
    change(program)
    before, replays = program.model[2].weight.clone(), program.step.replayed
    assert program.known(rand(5, 4)) is NOT_KNOWN
    assert torch.equal(program.model[2].weight, before) and program.step.replayed == replays


def test_the_rate_of_the_call_is_read(device: EmulatedDevice) -> None:
    program = Program()
    before = program.weight.clone()
    program.optimizer.param_groups[0]["lr"] = 0.0
    assert program.known(rand(5, 4)) is not NOT_KNOWN and torch.equal(program.weight, before)


def test_what_a_callable_object_holds_is_watched(device: EmulatedDevice) -> None:
    class Step:
        scale = 1.0

        def __init__(self) -> None:
            self.settings = {"scale": 1.0}

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.settings["scale"]

    step = Step()
    captured: Any = graphdoctor.capture(step)
    for _ in range(CALLS):
        captured(rand(4))
    x = rand(4)
    assert captured._last(captured, (x,), {}) is not NOT_KNOWN
    step.settings["scale"] = 3.0
    assert captured._last(captured, (x,), {}) is NOT_KNOWN
    assert torch.equal(captured(x), x * 3.0)


def test_an_argument_that_the_step_writes_to_is_part_of_the_form(device: EmulatedDevice) -> None:
    total, other = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    captured: Any = graphdoctor.capture(lambda x, total: total.add_(x))
    for _ in range(CALLS + 1):
        captured(rand(4), total)
    assert captured.replayed, captured.explain()
    assert captured._last(captured, (rand(4), other), {}) is NOT_KNOWN
    before, x = total.clone(), rand(4)
    assert captured._last(captured, (x, total), {}) is total
    assert torch.equal(total, before + x) and not other.any()


class Counting:
    """A step that takes another branch in every second call, by a number that it counts."""

    def __init__(self) -> None:
        self.model, self.average = nn.Linear(4, 1).cuda(), nn.Linear(4, 1).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.at = 0

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        self.at += 1
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.at % 2 == 0:
            with torch.no_grad():
                self.average.weight.lerp_(self.model.weight, 0.1)
        return loss


def test_a_call_of_another_branch_is_not_known(device: EmulatedDevice) -> None:
    program = Counting()
    captured: Any = graphdoctor.capture(program.train_step)
    for _ in range(14):
        captured(rand(5, 4))
    updates = captured._last
    (skips,) = (each for each in captured._known.values() if each is not updates)
    assert updates(captured, (rand(5, 4),), {}) is NOT_KNOWN and program.at == 14
    assert skips(captured, (rand(5, 4),), {}) is not NOT_KNOWN and program.at == 15
    assert updates(captured, (rand(5, 4),), {}) is not NOT_KNOWN and program.at == 16
    program.optimizer.param_groups[0]["momentum"] = 0.5
    assert skips(captured, (rand(5, 4),), {}) is NOT_KNOWN and program.at == 16


@pytest.mark.parametrize("halves", ["the program", "the step"])
def test_gradients_that_were_replaced_are_read(device: EmulatedDevice, halves: str) -> None:
    def loop(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def halve() -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = parameter.grad / 2

        def train_step(x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if halves == "the step":
                halve()
            return loss

        step, losses = wrap(train_step), []
        for i in range(14):
            losses.append(step(rand(5, 4)))
            if halves == "the program" and i % 3:
                halve()
        return [*losses, *model.parameters(), *(each.grad for each in model.parameters())]  # type: ignore[list-item]

    expected, found, step = in_eager_and_captured(loop)
    assert step.replayed == 11, step.explain()
    torch.testing.assert_close(found, expected)


def test_a_replay_that_raises_is_not_followed_by_an_eager_call(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program()

    calls = []

    def fails(*args: object, **kwargs: object) -> None:
        calls.append(args)
        raise RuntimeError("an illegal memory access was encountered")

    (graph,) = program.step._graphs.values()
    monkeypatch.setattr(graph._graph, "replay", fails)
    before = program.weight.clone()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        program.step(rand(5, 4))
    assert torch.equal(program.weight, before) and len(calls) == 1
    assert not program.step._lock.locked()


def test_a_number_is_written_when_its_bits_change(device: EmulatedDevice) -> None:
    number = FilledNumber(0.0, torch.device("cuda"))
    number.fill(-0.0)
    assert torch.equal(number.tensor.cpu().signbit(), torch.tensor(True))
    number.fill(float("nan"))
    version = number.tensor._version
    number.fill(float("nan"))
    assert number.tensor._version == version
