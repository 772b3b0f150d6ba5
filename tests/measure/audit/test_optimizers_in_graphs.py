"""The table of docs/audit.md: what becomes of torch's optimizers in a graph that is replayed on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
import torch

import graphdoctor
from graphdoctor.values.audited import AuditReport
from tests.support.emulated import captured, one_thread  # noqa: F401

Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "Adam": partial(torch.optim.Adam, lr=0.1, capturable=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.1, capturable=True),
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, capturable=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
    "NAdam": partial(torch.optim.NAdam, lr=0.1, capturable=True),
    "RAdam": partial(torch.optim.RAdam, lr=0.1, capturable=True),
    "Adamax": partial(torch.optim.Adamax, lr=0.1, capturable=True),
    "Adadelta": partial(torch.optim.Adadelta, lr=0.1, capturable=True),
    "Rprop": partial(torch.optim.Rprop, lr=0.1, capturable=True),
    "ASGD": partial(torch.optim.ASGD, lr=0.1, capturable=True),
}
ON_THE_HOST = ("Adagrad",)  # their step count, capturable or not
REPLAY_ON = ("Adam", "AdamW", "SGD", "Adagrad")  # graphdoctor.capture(), after a new learning rate


class Training:
    """A step, and what can happen to its optimizer."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 4, device="cuda")
        self.extra: torch.nn.Parameter | None = None
        self.x = torch.arange(8.0, device="cuda").view(2, 4) / 8
        self.optimizer = make(self.net.parameters())
        self.step()
        saved = copy.deepcopy(self.optimizer.state_dict())
        for state in saved["state"].values():  # as torch.load(map_location="cpu") gives it
            state.update({k: v.cpu() for k, v in state.items() if isinstance(v, torch.Tensor)})
        self.saved = saved

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        out = self.net(self.x)
        loss = out.square().sum() if self.extra is None else (out * self.extra).sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def goes_on(self) -> None:
        pass

    def schedules(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.1

    def resumes(self) -> None:
        self.optimizer.load_state_dict(self.saved)

    def adds_a_group(self) -> None:
        self.extra = torch.nn.Parameter(torch.ones(4, device="cuda"))
        self.optimizer.add_param_group({"params": [self.extra]})

    def weight(self) -> torch.Tensor:
        return self.net.weight.detach().cpu()


Event = Callable[[Training], None]
EVENTS: tuple[Event, ...] = (
    Training.goes_on, Training.schedules, Training.resumes, Training.adds_a_group,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("on_emulated_device")


def eager(make: Make, event: Event, before: int) -> torch.Tensor:
    training = Training(make)
    for _ in range(before):
        training.step()
    event(training)
    for _ in range(3):
        training.step()
    return training.weight()


def in_a_graph(make: Make, event: Event) -> tuple[torch.Tensor, AuditReport]:
    training = Training(make)
    with graphdoctor.audit() as audit:
        graph, _ = captured(training.step)
        graph.replay()
        event(training)
        for _ in range(3):
            graph.replay()
    assert training.extra is None or torch.equal(training.extra, torch.ones_like(training.extra))
    return training.weight(), audit.report()


def life_of(
    training: Training, step: Callable[[], object]
) -> Iterator[tuple[Event, list[torch.Tensor]]]:
    """What each of three steps after each event leaves of the weights, in one training."""
    for _ in range(5):
        step()
    for event in EVENTS:
        event(training)
        weights = []
        for _ in range(3):
            step()
            weights.append(training.weight())
        yield event, weights


def state_on_gpu(make: Make) -> Iterator[str]:
    training = Training(make)
    for name, parameter in training.net.named_parameters():
        for key, value in training.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                yield f"training.optimizer.state[training.net.{name}].{key}"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hand_made_graph_keeps_what_it_captured(name: str, event: Event) -> None:
    make = OPTIMIZERS[name]
    weight, report = in_a_graph(make, event)
    is_right = event is Training.goes_on and name not in ON_THE_HOST
    is_right = is_right or (name, event) == ("Rprop", Training.schedules)
    assert torch.equal(weight, eager(make, event, 1)) is is_right
    reported = {each.name for each in report.stale_tensors}
    assert reported == (set(state_on_gpu(make)) if event is Training.resumes else set())
    numbers = [each.name for each in report.frozen_values]
    assert numbers == ([f'{name}.param_groups[0]["lr"]'] if event is Training.schedules else [])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_graphdoctor_captured_follows_its_optimizer(name: str) -> None:
    eagerly, training = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    step, replayed = graphdoctor.capture(training.step), {}
    lives = zip(life_of(eagerly, eagerly.step), life_of(training, step), strict=True)
    for (event, expected), (_, weights) in lives:
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)
        replayed[event] = step.replayed - sum(replayed.values())
    follows_rates = name in REPLAY_ON
    assert [*replayed.values()] == [2 + 3, 3 if follows_rates else 0, 3, 0], step.explain()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_failed_capture_changes_counts_on_the_host_only(name: str) -> None:
    training, other = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    with pytest.raises(RuntimeError):
        captured(lambda: training.step().item())
    assert torch.equal(training.weight(), other.weight())
    for each in (training, other):
        each.step()
    assert torch.equal(training.weight(), other.weight()) is (name not in ON_THE_HOST)


@pytest.mark.parametrize(
    "make",
    [getattr(torch.optim, name) for name in OPTIMIZERS if name not in ("SGD", *ON_THE_HOST)],
    ids=lambda make: make.__name__,
)
def test_an_optimizer_that_is_not_capturable_refuses_and_stays_as_it_was(make: Make) -> None:
    training, other = Training(make), Training(make)
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(training.step)
    for each in (training, other):
        each.step()
    assert torch.equal(training.weight(), other.weight())
