"""GD208 to GD211 and GD213: what belongs outside the step, on its stream or on the GPU."""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.numbers import Counting
from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

OUTSIDE = Variants()


def given(step, *more: float) -> object:
    return step, (cuda(8, 4), *(torch.full((), number, device="cuda") for number in more))


@OUTSIDE.before("GD208", "Read the clock outside the step", same=False)
def animated_shader():
    start = time.time()

    def step(x):
        return (x * 0.1 + (time.time() - start)).sin()

    return given(step)


@OUTSIDE.after
def animated_shader_given():
    return given(lambda x, elapsed: (x * 0.1 + elapsed).sin(), 0.5)


@OUTSIDE.before("GD208", "Read the clock outside the step", same=False)
def wall_clock_schedule():
    """A budget of minutes: the scale of the update falls with the time that is over."""
    start = time.perf_counter()

    def step(x):
        progress = min((time.perf_counter() - start) / 300, 1.0)
        return x * (1 - progress)

    return given(step)


@OUTSIDE.after
def wall_clock_schedule_given():
    return given(lambda x, progress: x * (1 - progress), 0.25)


@OUTSIDE.before("GD208", "Read the clock outside the step", same=False)
def hour_of_day():
    def step(x):
        hour = datetime.now().timestamp() / 3600 % 24
        return torch.cat([x, torch.full((8, 1), hour, device="cuda")], 1)

    return given(step)


@OUTSIDE.after
def hour_of_day_given():
    return given(lambda x, hour: torch.cat([x, hour.expand(8, 1)], 1), 12.5)


@OUTSIDE.before("GD208", "Read the clock outside the step", same=False)
def decayed_events():
    """A temporal model that weighs events by their age."""
    born = time.monotonic()

    def step(x):
        age = torch.tensor(time.monotonic() - born, device="cuda")
        return x * (-age).exp()

    return given(step)


@OUTSIDE.after
def decayed_events_given():
    return given(lambda x, age: x * (-age).exp(), 0.5)


@OUTSIDE.before("GD208", "Read the clock outside the step", same=False)
def time_budget():
    start = time.time()

    def step(x):
        if time.time() - start > 1800:
            return x * 0.1
        return x * 1.0

    return given(step)


@OUTSIDE.after
def time_budget_given():
    return given(lambda x, elapsed: torch.where(elapsed > 1800, x * 0.1, x * 1.0), 1.0)


@OUTSIDE.before("GD210", "`x = x.clone()`")
def normalized_in_place():
    mean, std = torch.tensor(0.5, device="cuda"), torch.tensor(2.0, device="cuda")
    return given(lambda x: x.sub_(mean).div_(std).tanh())


@OUTSIDE.after
def normalized_copy():
    mean, std = torch.tensor(0.5, device="cuda"), torch.tensor(2.0, device="cuda")

    def step(x):
        x = x.clone()
        return x.sub_(mean).div_(std).tanh()

    return given(step)


@OUTSIDE.before("GD210", "`inplace=False`")
def activation_in_place():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)).cuda()
    nn.init.ones_(model[1].weight), nn.init.ones_(model[1].bias)
    return model, (cuda(8, 4),)


@OUTSIDE.after
def activation():
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4)).cuda()
    nn.init.ones_(model[1].weight), nn.init.ones_(model[1].bias)
    return model, (cuda(8, 4),)


@OUTSIDE.before("GD210", "`labels = labels.clone()`")
def ignored_labels():
    """Padding becomes the index that the loss ignores."""

    def step(x, labels):
        labels[labels == 0] = -100
        return F.cross_entropy(x, labels)

    return step, (cuda(8, 4), torch.arange(8, device="cuda") % 4)


@OUTSIDE.after
def ignored_labels_of_a_copy():
    def step(x, labels):
        labels = labels.clone()
        labels[labels == 0] = -100
        return F.cross_entropy(x, labels)

    return step, (cuda(8, 4), torch.arange(8, device="cuda") % 4)


@OUTSIDE.before("GD210", "`x = x.clone()`")
def mixup():
    def step(x):
        flipped = x.flip(0).mul_(0.3)
        x.mul_(0.7).add_(flipped)
        return x.sum(1)

    return given(step)


@OUTSIDE.after
def mixup_of_a_copy():
    def step(x):
        flipped = x.flip(0).mul_(0.3)
        x = x.clone()
        x.mul_(0.7).add_(flipped)
        return x.sum(1)

    return given(step)


@OUTSIDE.before("GD210", "`x = x.clone()`")
def dropped_channel():
    def step(x):
        x[:, 0] = 0
        return x.square().sum(1)

    return given(step)


@OUTSIDE.after
def dropped_channel_of_a_copy():
    def step(x):
        x = x.clone()
        x[:, 0] = 0
        return x.square().sum(1)

    return given(step)


@OUTSIDE.before("GD211", "Keep the 0-d tensor on the GPU")
def annealed_temperature():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = torch.tensor(1.0)

        def forward(self, x):
            self.temperature.mul_(0.9)
            return x / self.temperature

    return Head(), (cuda(8, 4),)


@OUTSIDE.after
def annealed_temperature_on_gpu():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("temperature", torch.tensor(1.0, device="cuda"))

        def forward(self, x):
            self.temperature.mul_(0.9)
            return x / self.temperature

    return Head(), (cuda(8, 4),)


@OUTSIDE.before("GD211", "`self.sigmas.index_select(0, self.n.view(1)).squeeze(0)`")
def sigmas_of_a_scheduler():
    """Diffusers keeps the sigmas on the CPU and takes the next one in each step."""

    class Euler(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.sigmas = torch.linspace(1, 0, 50)

        def forward(self, sample, output):
            sigma, after = self.sigmas[self.n], self.sigmas[self.n + 1]
            self.n += 1
            return sample + output * (after - sigma)

    return Euler(), (cuda(8, 4), cuda(8, 4))


@OUTSIDE.after
def sigmas_on_gpu():
    class Euler(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("sigmas", torch.linspace(1, 0, 50).cuda())

        def forward(self, sample, output):
            sigma = self.sigmas.index_select(0, self.n.view(1)).squeeze(0)
            after = self.sigmas.index_select(0, (self.n + 1).view(1)).squeeze(0)
            self.n.add_(1)
            return sample + output * (after - sigma)

    return Euler(), (cuda(8, 4), cuda(8, 4))


@OUTSIDE.before("GD209", "Create model.updates on the GPU")
def decay_of_an_average():
    """EMA with a warm-up, whose count is a CPU tensor."""

    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.updates = torch.tensor(0)
            self.register_buffer("mean", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.updates += 1
            decay = (1 + self.updates) / (10 + self.updates)
            self.mean.mul_(decay).add_(x.mean(0) * (1 - decay))
            return self.mean * 1

    return Average(), (cuda(8, 4),)


@OUTSIDE.after
def decay_of_an_average_on_gpu():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("updates", torch.tensor(0, device="cuda"))
            self.register_buffer("mean", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.updates += 1
            decay = (1 + self.updates) / (10 + self.updates)
            self.mean.mul_(decay).add_(x.mean(0) * (1 - decay))
            return self.mean * 1

    return Average(), (cuda(8, 4),)


@OUTSIDE.before("GD211", "Pass inputs[1] on the GPU", same=False)
def scale_of_the_caller():
    """The guidance scale comes as a CPU tensor, another one for each call."""
    scales = itertools.count(1)

    def step(x, scale):
        return x * scale

    return SimpleNamespace(
        step=step, inputs=lambda: (cuda(8, 4), torch.tensor(float(next(scales))))
    )


@OUTSIDE.after
def scale_of_the_caller_on_gpu():
    scales = itertools.count(1)

    def step(x, scale):
        return x * scale

    def inputs():
        return cuda(8, 4), torch.tensor(float(next(scales)), device="cuda")

    return SimpleNamespace(step=step, inputs=inputs)


@OUTSIDE.before("GD211", "Keep the 0-d tensor on the GPU")
def weight_of_a_loss():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.ones(2)

        def forward(self, x):
            self.weights *= torch.tensor([0.5, 1.5])
            return x.abs().mean() * self.weights[0] + x.square().mean() * self.weights[1]

    return Weighted(), (cuda(8, 4),)


@OUTSIDE.after
def weight_of_a_loss_on_gpu():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weights", torch.ones(2, device="cuda"))
            self.register_buffer("rates", torch.tensor([0.5, 1.5], device="cuda"))

        def forward(self, x):
            self.weights *= self.rates
            return x.abs().mean() * self.weights[0] + x.square().mean() * self.weights[1]

    return Weighted(), (cuda(8, 4),)


@OUTSIDE.before("GD211", "`self.alphas.index_select(0, self.n.view(1)).squeeze(0)`")
def noise_level_of_a_step():
    """DDPM: the products of the alphas are on the CPU, and the count of the step selects one."""

    class Noised(Counting):
        def __init__(self):
            super().__init__(on_gpu=False)
            self.alphas = torch.linspace(0.99, 0.01, 50)

        def forward(self, x, noise):
            alpha = self.alphas[self.n]
            self.n += 1
            return x * alpha + noise

    return Noised(), (cuda(8, 4), cuda(8, 4))


@OUTSIDE.after
def noise_level_on_gpu():
    class Noised(Counting):
        def __init__(self):
            super().__init__(on_gpu=True)
            self.register_buffer("alphas", torch.linspace(0.99, 0.01, 50).cuda())

        def forward(self, x, noise):
            alpha = self.alphas.index_select(0, self.n.view(1)).squeeze(0)
            self.n.add_(1)
            return x * alpha + noise

    return Noised(), (cuda(8, 4), cuda(8, 4))


def averaging(update, *, forked: bool) -> object:
    """`update(total, x)` on another stream, or on one that forks from the step's."""
    averages, total = torch.cuda.Stream(), torch.zeros(8, 4, device="cuda")

    def step(x):
        if forked:
            averages.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(averages):
            update(total, x)
        if forked:
            torch.cuda.current_stream().wait_stream(averages)
        return x + 1

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state={"total": total})


def _pairs_of_streams() -> None:
    for name, update in (
        ("average_on_a_stream", lambda total, x: total.lerp_(x, 0.1)),
        ("staged_copy", lambda total, x: total.copy_(x, non_blocking=True)),
        ("counted_rows", lambda total, x: torch.add(total, x, out=total)),
        ("zeroed_buffer", lambda total, x: total.zero_()),
        ("scattered_rows", lambda total, x: total[0].add_(x[0])),
    ):
        before = lambda update=update: averaging(update, forked=False)  # noqa: E731
        before.__name__ = name
        OUTSIDE.before("GD213", "Fork with averages.wait_stream(torch.cuda.current_stream())")(
            before
        )
        OUTSIDE.after(lambda update=update: averaging(update, forked=True))


_pairs_of_streams()
