"""`capture()` of a step with Python of its own: numbers that it changes, branches on them, schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.captured.step_python import PythonPart, Unsupported, python_part
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import in_eager_and_captured

Wrap = Callable[[Any], Any]
Found = tuple[list[torch.Tensor], nn.Module, object]
made_so_far = 0
_EVERY = 4


def _x(seed: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).cuda()


class Agent:
    """A step that counts its calls, and updates its second network in every `delay`-th one only."""

    def __init__(self, delay: int = 2) -> None:
        self.model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 1)]).cuda()
        self.fast = torch.optim.SGD(self.model[0].parameters(), lr=0.05)
        self.slow = torch.optim.SGD(self.model[1].parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.slow, 1, 0.9)
        self.total, self.delay, self.epoch = 0, delay, 0.0

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model[1](self.model[0](x).tanh()).square().mean()
        return found

    def update(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.total += 1
        loss = self.loss(x)
        self.fast.zero_grad()
        self.slow.zero_grad()
        loss.backward()
        self.fast.step()
        updates_both = self.total % self.delay == 0
        if updates_both:
            self.slow.step()
            self.schedule.step()
        return {"loss": loss}

    def warm_up(self, x: torch.Tensor) -> torch.Tensor:
        self.total += 1
        self.epoch = self.epoch + 0.25
        loss = self.loss(x)
        if self.total <= 5:
            return loss.detach()
        self.fast.zero_grad()
        loss.backward()
        self.fast.step()
        return loss

    def is_due(self) -> bool:
        return self.total % self.delay == 0

    def helped(self, x: torch.Tensor) -> torch.Tensor:
        self.total += 1
        loss = self.loss(x)
        self.fast.zero_grad()
        loss.backward()
        if self.is_due():
            self.fast.step()
        return loss

    def weighted(self, x: torch.Tensor) -> torch.Tensor:
        self.total += 1
        loss = self.loss(x) / self.total
        self.fast.zero_grad()
        loss.backward()
        self.fast.step()
        return loss

    def looped(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            self.total += 1
            loss = self.loss(x)
            self.fast.zero_grad()
            loss.backward()
            self.fast.step()
        return loss

    def early(self, x: torch.Tensor) -> torch.Tensor:
        """The schedule moves ahead of the optimizer, so that a replay would step with the old rate."""
        self.schedule.step()
        loss = self.loss(x)
        self.slow.zero_grad()
        loss.backward()
        self.slow.step()
        return loss


def _run(agent: Agent, step: Callable[..., Any], calls: int) -> Found:
    found = []
    for i in range(calls):
        result = step(_x(i))
        found.append(result["loss"] if isinstance(result, dict) else result)
    return found, agent.model, (agent.total, agent.epoch, agent.schedule.last_epoch)


def policy_delay(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.update), 16)


def three_ways_with_the_delay_changed(wrap: Wrap) -> Found:
    """The program changes the delay in the middle, and the total, too."""
    agent = Agent(3)
    step = wrap(agent.update)
    first = _run(agent, step, 12)[0]
    agent.total = 100
    return [*first, *_run(agent, step, 9)[0]], agent.model, agent.total


def a_warm_up_phase(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.warm_up), 14)


def closure_and_global(wrap: Wrap) -> Found:
    global made_so_far
    agent, calls, made_so_far = Agent(), 0, 0

    def accumulate(x: torch.Tensor, every: int = 4) -> torch.Tensor:
        """Gradients of `every` batches for each step."""
        nonlocal calls
        global made_so_far
        loss = agent.loss(x) / every
        loss.backward()
        calls += 1
        if calls % every == 0:
            agent.fast.step()
            agent.fast.zero_grad()
            agent.slow.zero_grad()
            made_so_far += 1
        return loss

    found, model, _ = _run(agent, wrap(accumulate), 24)
    return found, model, (calls, made_so_far)


def helper_reads_the_number(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.helped), 12)


def number_is_an_operand(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.weighted), 12)


def number_changes_in_a_loop(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.looped), 8)


def schedule_moves_first(wrap: Wrap) -> Found:
    agent = Agent()
    return _run(agent, wrap(agent.early), 10)


def _scheduled(wrap: Wrap, others: range) -> Found:
    """The schedule is an argument, as of a function made of the loop of `main()`; `others` get another one."""
    agent = Agent()
    other = torch.optim.lr_scheduler.ExponentialLR(agent.slow, 0.5)

    def train_step(x: torch.Tensor, schedule: torch.optim.lr_scheduler.LRScheduler) -> torch.Tensor:
        agent.slow.zero_grad()
        loss = agent.loss(x)
        loss.backward()
        agent.slow.step()
        schedule.step()
        return loss

    step = wrap(train_step)
    found = [step(_x(i), other if i in others else agent.schedule) for i in range(12)]
    return found, agent.model, (agent.schedule.last_epoch, other.last_epoch)


def schedule_is_an_argument(wrap: Wrap) -> Found:
    return _scheduled(wrap, range(0))


def schedule_is_another_argument(wrap: Wrap) -> Found:
    return _scheduled(wrap, range(8, 10))


class Average:
    """An average of weights whose decay grows with its own count, as EMA classes of public training code have it."""

    def __init__(self, model: nn.Module) -> None:
        self.updates = 0
        self.weights = [each.detach().clone() for each in model.parameters()]

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        self.follow(model, min(0.99, (1 + self.updates) / (10 + self.updates)))

    @torch.no_grad()
    def follow(self, model: nn.Module, decay: float) -> None:
        for slow, fast in zip(self.weights, model.parameters(), strict=True):
            slow.lerp_(fast, 1 - decay)


def average_with_its_own_count(wrap: Wrap) -> Found:
    agent = Agent()
    average = Average(agent.model)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = agent.loss(x)
        agent.fast.zero_grad()
        loss.backward()
        agent.fast.step()
        average.update(agent.model)
        return loss

    found, model, _ = _run(agent, wrap(train_step), 5)
    return [*found, *average.weights], model, average.updates


def average_with_the_decay_as_argument(wrap: Wrap) -> Found:
    """As docs/capture.md and `explain()` say."""
    agent = Agent()
    average = Average(agent.model)

    def train_step(x: torch.Tensor, decay: float) -> torch.Tensor:
        loss = agent.loss(x)
        agent.fast.zero_grad()
        loss.backward()
        agent.fast.step()
        average.follow(agent.model, decay)
        return loss

    step = wrap(train_step)
    found = [step(_x(i), min(0.99, (2 + i) / (11 + i))) for i in range(12)]
    return [*found, *average.weights], agent.model, None


class Trainer(Agent):
    """A trainer whose loop counts the steps, as public trainers do, and whose average counts its updates."""

    def __init__(self) -> None:
        super().__init__()
        self.global_step = 0
        self.average = Average(self.model)

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x)
        self.fast.zero_grad()
        loss.backward()
        self.fast.step()
        return loss

    def train_scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.train_step(x) / self.global_step


def _count_in_loop(trainer: Trainer, step: Callable[..., Any]) -> Found:
    found = []
    for i in range(12):
        trainer.global_step += 1
        found.append(step(_x(i)))
        trainer.average.update(trainer.model)
    return [*found, *trainer.average.weights], trainer.model, trainer.global_step


def nothing_reads_the_count_of_the_loop(wrap: Wrap) -> Found:
    trainer = Trainer()
    return _count_in_loop(trainer, wrap(trainer.train_step))


def step_reads_the_count_of_the_loop(wrap: Wrap) -> Found:
    trainer = Trainer()
    return _count_in_loop(trainer, wrap(trainer.train_scaled))


def hook_reads_the_count_of_the_loop(wrap: Wrap) -> Found:
    trainer = Trainer()
    trainer.model[0].weight.register_hook(lambda gradient: gradient / trainer.global_step)
    return _count_in_loop(trainer, wrap(trainer.train_step))


class NamedStep(Trainer):
    """A trainer whose count has the name of a method that the step calls, and of what Adam's state is called."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.fast = torch.optim.Adam(self.model.parameters(), capturable=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.fast, 1, 0.9)

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().train_step(x)
        self.schedule.step()
        return loss

    def train_scaled(self, x: torch.Tensor) -> torch.Tensor:
        return super().train_step(x) / self.step

    def train_and_count(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().train_step(x)
        self.step += 1
        return loss


def _count_under_that_name(trainer: NamedStep, step: Callable[..., Any]) -> Found:
    found = []
    for i in range(12):
        trainer.step += 1
        found.append(step(_x(i)))
    return found, trainer.model, (trainer.step, trainer.schedule.last_epoch)


def step_calls_methods_of_the_name_of_the_count(wrap: Wrap) -> Found:
    trainer = NamedStep()
    return _count_under_that_name(trainer, wrap(trainer.train_step))


def step_reads_the_count_beside_methods_of_its_name(wrap: Wrap) -> Found:
    trainer = NamedStep()
    return _count_under_that_name(trainer, wrap(trainer.train_scaled))


def step_changes_the_count_and_helpers_call_methods_of_its_name(wrap: Wrap) -> Found:
    trainer = NamedStep()
    return _count_under_that_name(trainer, wrap(trainer.train_and_count))


def rate_is_returned(wrap: Wrap) -> Found:
    """`get_last_lr()` of a schedule that the program moves is no constant."""
    agent = Agent()

    def train_step(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        agent.slow.zero_grad()
        loss = agent.loss(x)
        loss.backward()
        agent.slow.step()
        return loss, agent.schedule.get_last_lr()[0]

    step, found = wrap(train_step), []
    for i in range(10):
        loss, rate = step(_x(i))
        agent.schedule.step()
        found += [loss, torch.tensor(rate)]
    return found, agent.model, None


@pytest.mark.parametrize(
    ("loop", "replays"),
    [
        (policy_delay, 11),
        (three_ways_with_the_delay_changed, 16),
        (a_warm_up_phase, 9),
        (closure_and_global, 20),
        (helper_reads_the_number, 0),
        (number_is_an_operand, 0),
        (number_changes_in_a_loop, 0),
        (schedule_moves_first, 0),
        (schedule_is_an_argument, 9),
        (schedule_is_another_argument, 7),
        (rate_is_returned, 0),
        (average_with_the_decay_as_argument, 9),
        (nothing_reads_the_count_of_the_loop, 9),
        (step_reads_the_count_of_the_loop, 1),
        (hook_reads_the_count_of_the_loop, 1),
        (step_calls_methods_of_the_name_of_the_count, 9),
        (step_reads_the_count_beside_methods_of_its_name, 1),
        (step_changes_the_count_and_helpers_call_methods_of_its_name, 9),
    ],
)
def test_the_python_of_a_step_runs_once_for_each_call(
    loop: Callable[[Wrap], Found], replays: int
) -> None:
    with EmulatedDevice():
        eager, captured, step = in_eager_and_captured(loop)
        expected, model, numbers = eager
        found, trained, numbers_found = captured
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one.detach(), rtol=1e-5, atol=1e-6)
        for weight, other in zip(model.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(other, weight, rtol=1e-5, atol=1e-6)
    assert numbers_found == numbers
    assert step.replayed == replays, step.explain()


def test_a_float_that_the_step_computes_for_the_gpu_is_to_be_an_argument() -> None:
    with EmulatedDevice():
        _, _, step = in_eager_and_captured(average_with_its_own_count)
    assert step.replayed == 0
    assert "pass the number to the step as a float argument" in step.explain()


def test_a_step_without_numbers_of_its_own_has_no_python_part() -> None:
    limit = 3

    def train_step(x: int) -> int:
        y = x + limit
        if y > limit:
            y += 1
        return y

    assert python_part(train_step) is None


def test_branches_and_numbers_are_looked_at_without_changing_anything() -> None:
    agent = type("Agent", (), {"count": 3, "state": {"seen": 1.0}})()

    def train_step(x: int, flag: bool = True) -> int:
        agent.count += 1
        if flag and agent.count % 4 == 0:
            agent.state["seen"] = agent.state["seen"] * 2
            return x
        agent.count = 0
        return 0

    part = python_part(train_step)
    assert isinstance(part, PythonPart)
    assert part.look(1) == ((True,), (4, 2.0), ())
    assert part.look(1, flag=False) == ((False,), (0, 1.0), ())
    assert (agent.count, agent.state) == (3, {"seen": 1.0})
    part.commit(part.look(1), (1,), {})
    assert (agent.count, agent.state) == (4, {"seen": 2.0})


def test_a_branch_may_read_a_constant_of_the_module() -> None:
    agent = type("Agent", (), {"count": 3})()

    def train_step(x: int) -> int:
        agent.count += 1
        if agent.count % _EVERY == 0:
            return x
        return 0

    part = python_part(train_step)
    assert isinstance(part, PythonPart)
    assert part.look(1) == ((True,), (4,), ())


def test_a_branch_on_what_the_step_computes_cannot_be_separated() -> None:
    agent = type("Agent", (), {"count": 3})()

    def train_step(x: int) -> int:
        agent.count += 1
        computed = abs(x)
        if computed:
            agent.count = 0
        return computed

    with pytest.raises(Unsupported, match="`if computed:` depends on more than numbers"):
        python_part(train_step)


@pytest.mark.parametrize("name", ["weighted", "looped", "early"])
def test_python_that_cannot_be_separated_says_why(name: str) -> None:
    with EmulatedDevice(), pytest.raises(Unsupported, match=r"self\.total|runs after a schedule"):
        python_part(getattr(Agent(), name))
