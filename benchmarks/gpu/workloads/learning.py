"""Training steps of several kinds of learning: a GAN's, an actor-critic's, Q-learning's, on a graph, of physics.

All are plain PyTorch at usual sizes: a DCGAN of 64 by 64 pixels, PPO's update of a minibatch, a
dueling network with a target network, two layers of message passing, a Fourier neural operator.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def _adam(*models: nn.Module, rate: float = 2e-4) -> torch.optim.Adam:
    parameters = [parameter for model in models for parameter in model.parameters()]
    return torch.optim.Adam(parameters, lr=rate, fused=True, capturable=True)


def _generator(width: int = 64, noise: int = 100) -> nn.Sequential:
    layers: list[nn.Module] = [nn.ConvTranspose2d(noise, width * 8, 4, bias=False)]
    for factor in (8, 4, 2):
        layers += [nn.BatchNorm2d(width * factor), nn.ReLU()]
        layers.append(nn.ConvTranspose2d(width * factor, width * factor // 2, 4, 2, 1, bias=False))
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers)


def _discriminator(width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for factor in (1, 2, 4):
        layers.append(nn.Conv2d(width * factor, width * factor * 2, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(width * factor * 2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(width * 8, 1, 4), nn.Flatten())


def gan(batch_size: int = 64):
    # Otherwise cuDNN adds gradients of weights in another order each time, which Adam's first steps make
    # 4 % of a gradient (measured on an H200): nothing could be proved of replays then.
    torch.backends.cudnn.deterministic = True
    generator, discriminator = _generator().cuda(), _discriminator().cuda()
    of_generator, of_discriminator = _adam(generator), _adam(discriminator)

    def step(images: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = generator(noise)
        of_discriminator.zero_grad(set_to_none=True)
        real, false = discriminator(images), discriminator(made.detach())
        worse = F.softplus(-real).mean() + F.softplus(false).mean()
        worse.backward()
        of_discriminator.step()
        of_generator.zero_grad(set_to_none=True)
        better = F.softplus(-discriminator(made)).mean()
        better.backward()
        of_generator.step()
        return worse.detach(), better.detach()

    inputs = (
        torch.rand(batch_size, 3, 64, 64, device="cuda") * 2 - 1,
        torch.randn(batch_size, 100, 1, 1, device="cuda"),
    )
    state = {
        "generator": generator,
        "discriminator": discriminator,
        "of_generator": of_generator,
        "of_discriminator": of_discriminator,
    }
    return SimpleNamespace(step=step, inputs=inputs, state=state)


class ActorCritic(nn.Module):
    def __init__(self, seen: int = 24, actions: int = 6, width: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.mean, self.value = nn.Linear(width, actions), nn.Linear(width, 1)
        self.spread = nn.Parameter(torch.zeros(actions))

    def forward(self, seen):
        hidden = self.body(seen)
        return self.mean(hidden), self.spread.exp(), self.value(hidden).squeeze(-1)


def ppo(batch_size: int = 256):
    model = ActorCritic().cuda()
    optimizer = _adam(model, rate=3e-4)

    def step(seen, actions, before, advantages, returns):
        optimizer.zero_grad(set_to_none=True)
        mean, spread, value = model(seen)
        chance = (-0.5 * ((actions - mean) / spread) ** 2 - spread.log()).sum(-1)
        ratio = (chance - before).exp()
        clipped = ratio.clamp(0.8, 1.2)
        policy = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss = policy + 0.5 * F.mse_loss(value, returns) - 0.01 * spread.log().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(batch_size, 24, device="cuda"),
        torch.randn(batch_size, 6, device="cuda"),
        torch.randn(batch_size, device="cuda") * 0.1 - 3,
        torch.randn(batch_size, device="cuda"),
        torch.randn(batch_size, device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


class Convolved(nn.Module):
    """Atari's network: three convolutions and a dueling head."""

    def __init__(self, actions: int = 18) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.value, self.gain = nn.Linear(512, 1), nn.Linear(512, actions)

    def forward(self, screens):
        hidden = self.body(screens)
        gain = self.gain(hidden)
        return self.value(hidden) + gain - gain.mean(dim=1, keepdim=True)


def q_learning(batch_size: int = 32):
    model, target = Convolved().cuda(), Convolved().cuda().requires_grad_(False)
    optimizer = _adam(model)

    def step(screens, actions, rewards, after, ended):
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            best = model(after).argmax(dim=1, keepdim=True)
            wanted = rewards + 0.99 * (1 - ended) * target(after).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(model(screens).gather(1, actions).squeeze(1), wanted)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), 0.005)
        return loss.detach()

    inputs = (
        torch.rand(batch_size, 4, 84, 84, device="cuda"),
        torch.randint(18, (batch_size, 1), device="cuda"),
        torch.randn(batch_size, device="cuda"),
        torch.rand(batch_size, 4, 84, 84, device="cuda"),
        (torch.rand(batch_size, device="cuda") < 0.05).float(),
    )
    state = {"model": model, "target": target, "optimizer": optimizer}
    return SimpleNamespace(step=step, inputs=inputs, state=state)


class Messages(nn.Module):
    """Mean over the neighbours, by indices: a layer of GraphSAGE."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own, self.theirs = nn.Linear(width_in, width_out), nn.Linear(width_in, width_out)

    def forward(self, nodes, source, sink, share):
        gathered = torch.zeros_like(nodes).index_add(0, sink, nodes[source] * share[:, None])
        return self.own(nodes) + self.theirs(gathered)


class Graph(nn.Module):
    def __init__(self, features: int = 128, width: int = 256, classes: int = 40) -> None:
        super().__init__()
        self.first, self.second = Messages(features, width), Messages(width, classes)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, nodes, source, sink, share):
        hidden = F.relu(self.norm(self.first(nodes, source, sink, share)))
        return self.second(hidden, source, sink, share)


def graph(nodes: int = 4096, edges: int = 32_768):
    model = Graph().cuda()
    optimizer = _adam(model, rate=1e-3)
    source, sink = torch.randint(nodes, (2, edges), device="cuda")
    counts = torch.bincount(sink, minlength=nodes).clamp(min=1)
    share = 1.0 / counts[sink]

    def step(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(features, source, sink, share), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(nodes, 128, device="cuda"),
        torch.randint(40, (nodes,), device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


class Spectral(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.weight = nn.Parameter(scale * torch.randn(2, width, width, modes, modes, 2))
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x):
        modes, weight = self.modes, torch.view_as_complex(self.weight)
        found = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", found[:, :, :modes, :modes], weight[0])
        high = torch.einsum("bixy,ioxy->boxy", found[:, :, -modes:, :modes], weight[1])
        middle = low.new_zeros(*low.shape[:2], found.shape[2] - 2 * modes, modes)
        kept = torch.cat([low, middle, high], dim=2)
        kept = F.pad(kept, (0, found.shape[3] - modes))
        return torch.fft.irfft2(kept, s=x.shape[-2:]) + self.beside(x)


class Operator(nn.Module):
    def __init__(self, width: int = 32, modes: int = 12) -> None:
        super().__init__()
        self.lift, self.lower = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.layers = nn.ModuleList(Spectral(width, modes) for _ in range(4))

    def forward(self, field):
        x = self.lift(field)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.lower(x)


def fourier(batch_size: int = 8):
    model = Operator().cuda()
    optimizer = _adam(model, rate=1e-3)

    def step(field: torch.Tensor, solution: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(field), solution)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(batch_size, 3, 64, 64, device="cuda"),
        torch.randn(batch_size, 1, 64, 64, device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
