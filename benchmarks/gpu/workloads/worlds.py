"""Other learning that nothing was fitted to: physics, control, recommendation, graphs, fields, contrast.

Each function is a family of its own: plain PyTorch at usual sizes, with random weights.
"""

from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from sequences import rand, trained, whole_numbers
from torch import nn


def layers(*widths: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    found: list[nn.Module] = []
    for into, out in pairwise(widths):
        found += [nn.Linear(into, out), between()]
    return nn.Sequential(*found[:-1])


def physics():
    """Burgers' equation: the loss has derivatives of the network, so that backward runs twice."""

    def loss_of(model, x, t):
        x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
        u = model(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t + u * u_x - 0.01 * u_xx).square().mean()

    model = layers(2, 64, 64, 64, 64, 64, 1, between=nn.Tanh)
    return trained(model, loss_of, rand(4096, 1), rand(4096, 1))


def control():
    """DDPG: a critic's step, an actor's step, and targets that follow."""
    actor, critic = layers(17, 256, 256, 6).cuda(), layers(23, 256, 256, 1).cuda()
    old_actor, old_critic = layers(17, 256, 256, 6).cuda(), layers(23, 256, 256, 1).cuda()
    of_actor, of_critic = (
        torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
        for model in (actor, critic)
    )

    def step(seen, done, reward, later):
        with torch.no_grad():
            then = old_critic(torch.cat([later, old_actor(later).tanh()], 1))
            wanted = reward + 0.99 * then
        of_critic.zero_grad(set_to_none=True)
        worse = F.mse_loss(critic(torch.cat([seen, done], 1)), wanted)
        worse.backward()
        of_critic.step()
        of_actor.zero_grad(set_to_none=True)
        better = -critic(torch.cat([seen, actor(seen).tanh()], 1)).mean()
        better.backward()
        of_actor.step()
        with torch.no_grad():
            for new, old in ((actor, old_actor), (critic, old_critic)):
                torch._foreach_lerp_(list(old.parameters()), list(new.parameters()), 0.005)
        return worse.detach(), better.detach()

    state = {
        "actor": actor,
        "critic": critic,
        "old_actor": old_actor,
        "old_critic": old_critic,
        "of_actor": of_actor,
        "of_critic": of_critic,
    }
    inputs = (rand(256, 17), rand(256, 6), rand(256, 1), rand(256, 17))
    return SimpleNamespace(step=step, inputs=inputs, state=state)


class TwoTowers(nn.Module):
    def __init__(self, people: int = 100_000, things: int = 50_000, width: int = 64) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(people, width), nn.Embedding(things, width)
        self.left, self.right = layers(width, 256, 128), layers(2 * width, 256, 128)

    def forward(self, person, thing, before):
        seen = self.things(before).mean(1)
        left = F.normalize(self.left(self.people(person)), dim=1)
        right = F.normalize(self.right(torch.cat([self.things(thing), seen], 1)), dim=1)
        return left @ right.t() * 20.0


def two_towers():
    """Retrieval with negatives from the batch, trained."""

    def loss_of(model, person, thing, before, own):
        return F.cross_entropy(model(person, thing, before), own)

    own = torch.arange(512, device="cuda")
    given = (
        whole_numbers(100_000, 512),
        whole_numbers(50_000, 512),
        whole_numbers(50_000, 512, 20),
    )
    return trained(TwoTowers(), loss_of, *given, own, fused=False)


class Factors(nn.Module):
    """Factorization machine and a deep part over the same embeddings."""

    def __init__(self, fields: int = 39, rows: int = 200_000, width: int = 16) -> None:
        super().__init__()
        self.first, self.rows = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        self.deep = layers(fields * width, 400, 400, 400, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.rows(x)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        return (self.first(x).sum(1) + pairs + self.deep(rows.flatten(1))).sigmoid()


def factors():
    """A click's probability from 39 fields."""
    return Factors().cuda().eval(), (whole_numbers(200_000, 2048, 39),)


class Attending(nn.Module):
    """Attention over the edges of a graph."""

    def __init__(self, into: int, out: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.made = heads, nn.Linear(into, heads * out, bias=False)
        self.sent = nn.Parameter(torch.randn(heads, out) * 0.1)
        self.got = nn.Parameter(torch.randn(heads, out) * 0.1)

    def forward(self, x, source, target):
        y = self.made(x).unflatten(1, (self.heads, -1))
        score = (y * self.sent).sum(-1)[source] + (y * self.got).sum(-1)[target]
        weight = F.leaky_relu(score, 0.2).exp()
        total = torch.zeros_like(y[..., 0]).index_add(0, target, weight)
        sent = y[source] * (weight / total[target].clamp_min(1e-9)).unsqueeze(-1)
        return torch.zeros_like(y).index_add(0, target, sent).flatten(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attending(128, 32), Attending(128, 32)
        self.last = nn.Linear(128, 16)

    def forward(self, x, source, target):
        x = F.elu(self.first(x, source, target))
        return self.last(F.elu(self.second(x, source, target)))


def graph_attention():
    """Two layers of attention over 40,000 edges."""
    model = Attention().cuda().eval()
    return model, (rand(5000, 128), whole_numbers(5000, 40_000), whole_numbers(5000, 40_000))


def field():
    """A radiance field: rays through a network, and what comes back along each, trained."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = layers(63, 256, 256, 256, 256, 256), nn.Linear(256, 4)

        def forward(self, at: torch.Tensor) -> torch.Tensor:
            waves = [at * 2.0**power for power in range(10)]
            parts = [part for wave in waves for part in (wave.sin(), wave.cos())]
            return self.head(F.relu(self.body(torch.cat([at, *parts], -1))))

    def loss_of(model, at, seen):
        found = model(at)
        kept = torch.exp(-F.softplus(found[..., 3]) * 0.05)
        through = torch.exp(-F.softplus(found[..., 3]).cumsum(dim=1) * 0.05)
        weights = (1 - kept) * through
        return F.mse_loss((weights.unsqueeze(-1) * found[..., :3].sigmoid()).sum(1), seen)

    return trained(Field(), loss_of, rand(512, 64, 3), rand(512, 3))


def contrast():
    """Pictures and texts in one space, trained on their pairs."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pictures = nn.Sequential(
                nn.Conv2d(3, 64, 4, 4),
                nn.GELU(),
                nn.Conv2d(64, 128, 3, 2, 1),
                nn.GELU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(128, 256),
            )
            layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)
            self.words = nn.Embedding(10_000, 256)
            self.texts = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, pictures, texts):
            left = F.normalize(self.pictures(pictures), dim=1)
            right = F.normalize(self.texts(self.words(texts)).mean(1), dim=1)
            return left @ right.t() * self.scale.exp()

    def loss_of(model, pictures, texts, own):
        scores = model(pictures, texts)
        return F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)

    own = torch.arange(64, device="cuda")
    return trained(Pairs(), loss_of, rand(64, 3, 96, 96), whole_numbers(10_000, 64, 32), own)


def flow():
    """A neural differential equation: twenty steps of Runge and Kutta, trained."""

    def loss_of(model, x, y):
        size = 0.05
        for _ in range(20):
            a = model(x)
            b = model(x + 0.5 * size * a)
            c = model(x + 0.5 * size * b)
            d = model(x + size * c)
            x = x + size / 6 * (a + 2 * b + 2 * c + d)
        return F.mse_loss(x, y)

    return trained(layers(8, 128, 128, 8, between=nn.Tanh), loss_of, rand(256, 8), rand(256, 8))


def penalty():
    """A critic of Wasserstein's distance, with a penalty on its gradient: backward runs twice."""
    made = layers(64, 256, 256, 32).cuda()

    def loss_of(model, real, noise, mix):
        with torch.no_grad():
            false = made(noise)
        between = (mix * real + (1 - mix) * false).detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        steep = (slope.square().sum(1).add(1e-12).sqrt() - 1).square().mean()
        return model(false).mean() - model(real).mean() + 10 * steep

    made_step = trained(
        layers(32, 256, 256, 256, 1, between=nn.LeakyReLU),
        loss_of,
        rand(512, 32),
        rand(512, 64),
        torch.rand(512, 1, device="cuda"),
    )
    made_step.state["made"] = made
    return made_step
