"""GD110 and GD115: seeds, states and generators that a graph does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

GENERATORS = Variants()

SEED = "Seed before the step"
REPEAT = "that must repeat once, before the step"
REPEAT_IN_STEP = "In each step, draw the numbers that must repeat once"


def dropped(seed: Callable[[], object] = lambda: None) -> object:
    """Dropout in a step that seeds first."""

    def step(x):
        seed()
        return F.dropout(x, 0.5) * 2

    return step, (cuda(8, 4),)


class Count:
    """The number of the step."""

    def __init__(self) -> None:
        self.step = 1337

    def __call__(self) -> int:
        self.step += 1
        return self.step


@GENERATORS.before("GD110", SEED, same=False)
def seeded_by_step() -> object:
    count = Count()
    return dropped(lambda: torch.manual_seed(count()))


GENERATORS.after(dropped)


@GENERATORS.before("GD110", SEED, same=False)
def all_gpus_seeded_by_step() -> object:
    count = Count()
    return dropped(lambda: torch.cuda.manual_seed_all(count()))


GENERATORS.after(dropped)


@GENERATORS.before("GD110", SEED, same=False)
def seeded_from_the_system() -> object:
    return dropped(torch.cuda.seed)


GENERATORS.after(dropped)


@contextmanager
def forked(states: dict[str, torch.Tensor]) -> Iterator[None]:
    """The random state of a rank's own stream of numbers, kept between the calls."""
    old = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(states["rank"])
    try:
        yield
    finally:
        states["rank"] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(old)


def attended(*, forks: bool) -> object:
    """Attention whose dropout draws from a state of its own, which each rank seeds otherwise."""
    old = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(2719)
    states = {"rank": torch.cuda.get_rng_state()}
    torch.cuda.set_rng_state(old)

    def step(x):
        scores = (x @ x.T).softmax(1)
        if not forks:
            return F.dropout(scores, 0.1) @ x
        with forked(states):
            return F.dropout(scores, 0.1) @ x

    return step, (cuda(8, 4),)


@GENERATORS.before("GD110", SEED, same=False)
def state_of_a_rank_forked() -> object:
    return attended(forks=True)


@GENERATORS.after
def state_of_a_rank_by_default() -> object:
    return attended(forks=False)


@GENERATORS.before("GD110", REPEAT, same=False)
def same_noise_by_forked_seed() -> object:
    def step(x):
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(12345)
            noise = torch.randn(8, 4, device="cuda")
        return x + noise

    return step, (cuda(8, 4),)


@GENERATORS.after
def same_noise_by_tensor() -> object:
    noise = torch.randn(8, 4, device="cuda")
    return lambda x: x + noise, (cuda(8, 4),)


def perturbed(*, reseeds: bool) -> object:
    """Two losses of a weight, moved forth and back by the same numbers, which a seed repeats."""
    weight, count = torch.ones(4, 4, device="cuda"), Count()

    def step(x):
        seed = count()
        kept = None if reseeds else torch.randn_like(weight)

        def move(scale):
            if kept is None:
                torch.manual_seed(seed)
            weight.add_(torch.randn_like(weight) if kept is None else kept, alpha=scale)

        move(0.001)
        one = (x @ weight).square().mean()
        move(-0.002)
        two = (x @ weight).square().mean()
        move(0.001)
        return one, two

    return step, (cuda(8, 4),)


@GENERATORS.before("GD110", REPEAT_IN_STEP, same=False)
def same_direction_by_seed() -> object:
    return perturbed(reseeds=True)


@GENERATORS.after
def same_direction_by_tensor() -> object:
    return perturbed(reseeds=False)


def own() -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(0)


DEFAULT = "Draw from the default generator"


@GENERATORS.before("GD115", DEFAULT, same=False)
def actions_of_own_generator() -> object:
    generator = own()
    return (lambda x: torch.multinomial(x.softmax(1), 1, replacement=True, generator=generator)), (
        cuda(8, 4),
    )


@GENERATORS.after
def actions_of_default_generator() -> object:
    return (lambda x: torch.multinomial(x.softmax(1), 1, replacement=True)), (cuda(8, 4),)


@GENERATORS.before("GD115", DEFAULT, same=False)
def keep_mask_of_own_generator() -> object:
    generator = own()

    def step(x):
        keep = torch.empty_like(x).bernoulli_(0.9, generator=generator)
        return x * keep / 0.9

    return step, (cuda(8, 4),)


@GENERATORS.after
def keep_mask_of_default_generator() -> object:
    def step(x):
        keep = torch.empty_like(x).bernoulli_(0.9)
        return x * keep / 0.9

    return step, (cuda(8, 4),)


def private(*, own_generator: bool) -> object:
    """A gradient with noise for differential privacy."""
    layer = nn.Linear(4, 4, device="cuda")
    generator = own() if own_generator else None

    def step(x):
        layer.zero_grad()
        layer(x).square().mean().backward()
        grad = layer.weight.grad
        grad += torch.normal(mean=0, std=0.1, size=grad.shape, device="cuda", generator=generator)
        return grad

    return step, (cuda(8, 4),)


@GENERATORS.before("GD115", DEFAULT, same=False)
def gradient_noise_of_own_generator() -> object:
    return private(own_generator=True)


@GENERATORS.after
def gradient_noise_of_default_generator() -> object:
    return private(own_generator=False)


@GENERATORS.before("GD115", DEFAULT, same=False)
def timesteps_of_own_generator() -> object:
    generator = own()

    def step(x):
        t = torch.randint(0, 10, (8,), device="cuda", generator=generator)
        return x * (t / 10)[:, None]

    return step, (cuda(8, 4),)


@GENERATORS.after
def timesteps_of_default_generator() -> object:
    def step(x):
        t = torch.randint(0, 10, (8,), device="cuda")
        return x * (t / 10)[:, None]

    return step, (cuda(8, 4),)


@GENERATORS.before("GD115", DEFAULT, same=False)
def permutation_of_own_generator() -> object:
    generator = own()
    return (lambda x: x[torch.randperm(8, device="cuda", generator=generator)]), (cuda(8, 4),)


@GENERATORS.after
def permutation_of_default_generator() -> object:
    return (lambda x: x[torch.randperm(8, device="cuda")]), (cuda(8, 4),)


@GENERATORS.before("GD115", REPEAT, same=False)
def same_noise_by_new_generator() -> object:
    def step(x):
        generator = torch.Generator(device="cuda").manual_seed(0)
        return x + torch.randn(8, 4, device="cuda", generator=generator)

    return step, (cuda(8, 4),)


GENERATORS.after(same_noise_by_tensor)


@GENERATORS.before("GD115", REPEAT, same=False)
def same_noise_by_seeded_generator() -> object:
    generator = torch.Generator(device="cuda")

    def step(x):
        generator.manual_seed(17)
        return x + torch.randn(8, 4, device="cuda", generator=generator)

    return step, (cuda(8, 4),)


GENERATORS.after(same_noise_by_tensor)
