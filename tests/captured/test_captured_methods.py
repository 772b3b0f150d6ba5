"""`@graphdoctor.capture` on a method: each object has its own graphs, and so has a copy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.step import CapturedStep
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.errors import UsageError


def _x(seed: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).cuda()


class Plain:
    """A critic, and an actor that is updated in every second step only."""

    def __init__(self) -> None:
        self.critic, self.actor = nn.Linear(6, 1).cuda(), nn.Linear(6, 6).cuda()
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-2)
        self.updates = 0

    def update(self, batch: torch.Tensor) -> torch.Tensor:
        self.critic_optimizer.zero_grad()
        loss = self.critic(batch).square().mean()
        loss.backward()
        self.critic_optimizer.step()
        return loss

    def update_actor(self, batch: torch.Tensor) -> torch.Tensor:
        self.actor_optimizer.zero_grad()
        loss = self.critic(self.actor(batch)).mean()
        loss.backward()
        self.actor_optimizer.step()
        return loss


class Agent(Plain):
    update = graphdoctor.capture(Plain.update)
    update_actor = graphdoctor.capture(Plain.update_actor)


class Decorated(Plain):
    @graphdoctor.capture
    def update(self, batch: torch.Tensor) -> torch.Tensor:
        """One step."""
        self.updates += 1
        self.critic_optimizer.zero_grad()
        loss = self.critic(batch).square().mean()
        loss.backward()
        self.critic_optimizer.step()
        return loss


class Doubled(Decorated):
    def update(self, batch: torch.Tensor) -> torch.Tensor:
        return super().update(2.0 * batch)


def _losses(agent: Any, first: int = 0, *, of_actor: bool = True) -> list[float]:
    found = []
    for i in range(first, first + 12):
        found.append(agent.update(_x(i)))
        if of_actor and i % 2:
            found.append(agent.update_actor(_x(100 + i)))
    return [float(loss) for loss in found]


def _made(cls: type[Any]) -> Any:
    torch.manual_seed(0)
    return cls()


def test_each_object_trains_as_in_eager_by_graphs_of_its_own() -> None:
    with EmulatedDevice():
        plain, one, other = _made(Plain), _made(Agent), _made(Agent)
        expected = _losses(plain)
        assert _losses(one) == pytest.approx(expected, rel=2e-4, abs=1e-5)
        assert one.update.replayed == 9, one.update.explain()
        assert one.update_actor.replayed == 3, one.update_actor.explain()
        assert other.update.replayed == 0
        assert _losses(other) == pytest.approx(expected, rel=2e-4, abs=1e-5)
        assert one.update.replayed == other.update.replayed == 9


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))]
)
def test_a_copy_of_an_object_has_captured_methods_of_its_own(copied: Any) -> None:
    with EmulatedDevice():
        plain, agent = _made(Plain), _made(Agent)
        _losses(plain, of_actor=False)
        _losses(agent, of_actor=False)
        twin, expected = copied(agent), _losses(plain, first=12, of_actor=False)
        assert _losses(twin, first=12, of_actor=False) == pytest.approx(
            expected, rel=2e-4, abs=1e-5
        )
        assert agent.update.replayed == twin.update.replayed == 9


def test_an_overriding_method_calls_the_captured_one_of_its_base() -> None:
    with EmulatedDevice():
        agent = _made(Doubled)
        for i in range(8):
            agent.update(_x(i))
        (step,) = [each for each in vars(agent).values() if isinstance(each, CapturedStep)]
        assert step.replayed == 5, step.explain()
        assert agent.updates == 8
    assert isinstance(Decorated.update, CapturedStep) and Decorated.update.__doc__ == "One step."


def test_an_object_without_a_dict_is_refused_with_what_to_do() -> None:
    class Slim:
        __slots__ = ("count",)

        @graphdoctor.capture
        def update(self) -> None:
            self.count = 1

    with pytest.raises(UsageError, match='add "__dict__" to the slots'):
        Slim().update()
