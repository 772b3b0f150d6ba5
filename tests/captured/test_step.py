"""`capture()` of a training step: the loop computes what eager computes, and most of its calls are replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import in_eager_and_captured

CALLS = 14
Loop = Callable[[Callable[[Any], Any]], tuple[list[float], list[torch.Tensor]]]


def _numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _classes(count: int, *shape: int, seed: int) -> torch.Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def one_cycle(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """Dropout, clipped gradients, Adam, and a schedule that moves the momentum, too."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=50)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        loss = step(_numbers(8, 16, seed=i).cuda(), _classes(4, 8, seed=i).cuda())
        schedule.step()
        losses.append(loss)
    assert isinstance(optimizer.param_groups[0]["lr"], float)
    return [loss.item() for loss in losses], list(model.parameters())


def accumulation(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """Two backward passes for each step of AdamW, in two functions."""
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, bias=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def micro_step(x: torch.Tensor, y: torch.Tensor, is_last: bool) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    step, losses = wrap(micro_step), []
    for i in range(2 * CALLS):
        x, y = _numbers(4, 6, 16, seed=i).cuda(), _numbers(4, 6, 16, seed=100 + i).cuda()
        losses.append(step(x, y, i % 2 == 1))
    return [loss.item() for loss in losses], list(model.parameters())


def gradients_dropped_at_the_end(
    wrap: Callable[[Any], Any],
) -> tuple[list[float], list[torch.Tensor]]:
    """A fused AdamW, as nanoGPT has it: the step leaves no gradients, and counts no writes to weights."""
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        losses.append(step(_numbers(8, 16, seed=i).cuda(), _classes(4, 8, seed=i).cuda()))
    return [loss.item() for loss in losses], list(model.parameters())


def momentum_and_a_short_batch(
    wrap: Callable[[Any], Any],
) -> tuple[list[float], list[torch.Tensor]]:
    """SGD with momentum; the last batch of each epoch is shorter, and batches are on the CPU."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).cuda()
    head = nn.Linear(4 * 36, 5).cuda()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CALLS)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to("cuda"), y.to("cuda")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(model(x)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, losses = wrap(train_step), []
    for i in range(2 * CALLS):
        size = 3 if i % 5 == 4 else 8
        losses.append(step(_numbers(size, 1, 8, 8, seed=i), _classes(5, size, seed=i)))
        schedule.step()
    return [loss.item() for loss in losses], [*parameters, *model.buffers()]


def moving_average(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """A VAE that draws on the GPU, and an average of its weights."""
    encoder, decoder = nn.Linear(12, 8).cuda(), nn.Linear(4, 12).cuda()
    average = nn.Linear(4, 12).cuda()
    average.load_state_dict(decoder.state_dict())
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)

    def train_step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizer.zero_grad(set_to_none=True)
        mean, spread = encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(spread) * (0.5 * spread).exp()
        error = nn.functional.mse_loss(decoder(code), x)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
        (error + 0.1 * divergence).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), decoder.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return {"error": error, "divergence": divergence}

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        found = step(_numbers(16, 12, seed=i).cuda())
        losses += [found["error"], found["divergence"]]
    both = [*encoder.parameters(), *decoder.parameters(), *average.parameters()]
    return [loss.item() for loss in losses], both


def delayed_policy(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """TD3: the actor and the targets are updated in every second call only."""
    actor, target = nn.Linear(6, 2).cuda(), nn.Linear(6, 2).cuda()
    critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)

    def update(states: torch.Tensor, rewards: torch.Tensor, updates_policy: bool) -> torch.Tensor:
        with torch.no_grad():
            noise = (torch.randn(states.shape[0], 2, device="cuda") * 0.2).clamp(-0.5, 0.5)
            actions = (target(states) + noise).clamp(-1, 1)
            wanted = rewards + 0.99 * critic(torch.cat([states, actions], 1))
        loss = nn.functional.mse_loss(critic(torch.cat([states, actions], 1)), wanted)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if updates_policy:
            actor_optimizer.zero_grad()
            (-critic(torch.cat([states, actor(states)], 1)).mean()).backward()
            actor_optimizer.step()
            for slow, fast in zip(target.parameters(), actor.parameters(), strict=True):
                slow.data.mul_(0.995).add_(0.005 * fast.data)
        return loss

    step, losses = wrap(update), []
    for i in range(2 * CALLS):
        states, rewards = _numbers(8, 6, seed=i).cuda(), _numbers(8, 1, seed=200 + i).cuda()
        losses.append(step(states, rewards, i % 2 == 1))
    return [loss.item() for loss in losses], [*actor.parameters(), *critic.parameters()]


def embeddings(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """DLRM: tables of embeddings and a dense part, with Adagrad and SGD."""
    tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(3)).cuda()
    top = nn.Sequential(nn.Linear(8 + 3, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.SGD([*tables.parameters(), *top.parameters()], lr=0.05)

    def train_step(dense: torch.Tensor, sparse: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        found = [table(sparse[:, place]) for place, table in enumerate(tables)]
        crossed = torch.stack([(one * dense).sum(1) for one in found], 1)
        predicted = top(torch.cat([dense, crossed], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(predicted, clicks)
        loss.backward()
        optimizer.step()
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        dense, sparse = _numbers(16, 8, seed=i).cuda(), _classes(50, 16, 3, seed=i).cuda()
        losses.append(step(dense, sparse, _classes(2, 16, seed=i).float().cuda()))
    return [loss.item() for loss in losses], [*tables.parameters(), *top.parameters()]


def mixed_precision(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """autocast and a GradScaler around AdamW."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten()).cuda()
    head = nn.Linear(8 * 16, 4).cuda()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0, growth_interval=4)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(head(model(x)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        losses.append(step(_numbers(8, 3, 4, 4, seed=i).cuda(), _classes(4, 8, seed=i).cuda()))
    assert scaler.get_scale() > 128.0
    return [loss.item() for loss in losses], parameters


def state_as_arguments(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """The model and the optimizer are arguments, as in many training scripts; the rate is assigned."""
    model = nn.GRUCell(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def train_step(model: Any, optimizer: Any, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss, 1.0

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.9**i
        loss, _ = step(model, optimizer, _numbers(4, 8, seed=i).cuda())
        losses.append(loss)
    return [loss.item() for loss in losses], list(model.parameters())


def results_in_attributes(
    wrap: Callable[[Any], Any],
) -> tuple[list[float], list[torch.Tensor]]:
    """An object that gets its batch in an attribute, and keeps its loss in one, as CycleGAN's do."""

    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(16, 4).cuda()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def set_input(self, seed: int) -> None:
            self.x, self.y = _numbers(8, 16, seed=seed).cuda(), _classes(4, 8, seed=seed).cuda()

        def optimize_parameters(self) -> None:
            self.out = self.net(self.x)
            self.loss = nn.functional.cross_entropy(self.out, self.y)
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()

    trainer = Trainer()
    step, losses = wrap(trainer.optimize_parameters), []
    for i in range(CALLS):
        trainer.set_input(i)
        step()
        losses.append(trainer.loss.detach())
    return [loss.item() for loss in losses], list(trainer.net.parameters())


def hidden_state(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """A recurrent model that keeps its hidden state, and its last loss, from one call to the next."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(8, 16), nn.Linear(16, 1)
            self.hidden = torch.zeros(4, 16, device="cuda")
            self.last_loss: torch.Tensor | None = None

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            hidden = self.cell(x, self.hidden)
            self.hidden = hidden.detach()
            out: torch.Tensor = self.head(hidden)
            self.last_loss = nn.functional.mse_loss(out, y)
            return out

    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> None:
        model(x, y)
        assert model.last_loss is not None
        model.last_loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        step(_numbers(4, 8, seed=i).cuda(), _numbers(4, 1, seed=100 + i).cuda())
        assert model.last_loss is not None
        losses += [model.last_loss.detach(), model.hidden.sum()]
        if i == 8:  # a new sequence
            model.hidden = torch.zeros(4, 16, device="cuda")
    return [loss.item() for loss in losses], list(model.parameters())


def a_sample_that_is_kept(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """A sample made with gradients, as dcgan's: its graph holds the parameters' accumulations.

    Only a GPU runs these on the stream on which they were made.
    """
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    sample = model(torch.ones(2, 16, device="cuda"))
    step = wrap(train_step)
    losses = [step(_numbers(8, 16, seed=i).cuda()) for i in range(CALLS)]
    optimizer.zero_grad()
    sample.sum().backward()
    assert model.bias.grad is not None
    return [*(loss.item() for loss in losses), model.bias.grad.sum().item()], list(
        model.parameters()
    )


def limits_of_an_environment(
    wrap: Callable[[Any], Any],
) -> tuple[list[float], list[torch.Tensor]]:
    """The step reads the limits of actions from an environment, which counts the program's steps."""

    class Environment:
        def __init__(self) -> None:
            self.limits, self.at = (-0.1, 0.1), 0

    envs = Environment()
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).clamp(envs.limits[0], envs.limits[1]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        envs.at += 1
        if i == 9:
            envs.limits = (-0.2, 0.2)  # a value that the graph would not follow
        if i == 11:
            envs.limits = (-0.1, 0.1)
        losses.append(step(_numbers(8, 16, seed=i).cuda()))
    return [loss.item() for loss in losses], list(model.parameters())


def gradient_penalty(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
    """As a WGAN-GP trains its critic: nodes of a backward pass are part of the graph of the next one."""
    critic = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        point = x.view(-1, 16).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
        loss = (slope.norm(2, dim=1) - 1).square().mean() - critic(point).mean()
        loss.backward()
        optimizer.step()
        return loss

    step, losses = wrap(train_step), []
    for i in range(CALLS):
        losses.append(step(_numbers(8, 4, 4, seed=i).cuda()))
    return [loss.item() for loss in losses], list(critic.parameters())


@pytest.mark.parametrize(
    ("loop", "replays"),
    [
        (gradient_penalty, 11),
        (limits_of_an_environment, 9),
        (results_in_attributes, 11),
        (hidden_state, 11),
        (one_cycle, 11),
        (accumulation, 17),
        (gradients_dropped_at_the_end, 11),
        (momentum_and_a_short_batch, 20),
        (moving_average, 11),
        (delayed_policy, 20),
        (embeddings, 11),
        (mixed_precision, 11),
        (state_as_arguments, 11),
    ],
)
def test_a_captured_step_trains_as_eager_does(loop: Loop, replays: int) -> None:
    with EmulatedDevice():
        (losses, weights), (found, trained), step = in_eager_and_captured(loop)
        # Capturable and fused optimizers round otherwise than their defaults.
        assert found == pytest.approx(losses, rel=2e-4, abs=1e-5)
        for weight, other in zip(weights, trained, strict=True):
            torch.testing.assert_close(other, weight, rtol=2e-3, atol=2e-5)
        assert step.replayed >= replays, step.explain()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "loop", [a_sample_that_is_kept, gradient_penalty, results_in_attributes, hidden_state]
)
def test_a_captured_step_trains_as_eager_does_on_a_gpu(loop: Loop) -> None:
    (losses, _), (found, _), step = in_eager_and_captured(loop)
    assert found == pytest.approx(losses, rel=2e-4, abs=1e-5)
    assert step.replayed >= 11, step.explain()


def test_one_graph_acts_before_and_after_training_and_leaves_gradients_alone() -> None:
    with EmulatedDevice():
        policy = nn.Linear(4, 2).cuda()

        def act(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return policy(x)

        step = graphdoctor.capture(act)
        for i in range(4):
            step(_numbers(3, 4, seed=i).cuda())
        assert step.replayed == 1
        for i in range(2):  # passes whose gradients add up
            x = _numbers(3, 4, seed=10 + i).cuda()
            policy(x).sum().backward()
            left = [parameter.grad for parameter in policy.parameters()]
            assert torch.equal(step(x), policy(x))
            assert all(p.grad is g for p, g in zip(policy.parameters(), left, strict=True))
        assert step.replayed == 3, step.explain()


def test_a_step_that_reads_gradients_has_graphs_with_and_without_them() -> None:
    with EmulatedDevice():
        model = nn.Linear(4, 2).cuda()

        def norm(x: torch.Tensor) -> torch.Tensor:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            return x.sum() + sum(grad.norm() for grad in grads)

        step = graphdoctor.capture(norm)
        for i in range(5):
            x = _numbers(3, 4, seed=i).cuda()
            assert torch.equal(step(x), norm(x))
        model(x).sum().backward()
        for i in range(5):
            x = _numbers(3, 4, seed=i).cuda()
            assert torch.equal(step(x), norm(x))
        model.zero_grad()
        assert torch.equal(step(x), norm(x))
        assert step.replayed >= 4, step.explain()
