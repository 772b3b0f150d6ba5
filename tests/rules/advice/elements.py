"""GD205 and GD218: elements that a step takes from what holds them."""

from __future__ import annotations

import itertools
import queue
from collections import deque

from tests.rules.advice.outside import given
from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

ELEMENTS = Variants()


@ELEMENTS.before("GD218", "Take the element outside the step", same=False)
def next_batch():
    loader = itertools.cycle([cuda(8, 4) for _ in range(3)])

    def step(x):
        return (x - next(loader)).square().mean()

    return given(step)


@ELEMENTS.after
def next_batch_given():
    return lambda x, y: (x - y).square().mean(), (cuda(8, 4), cuda(8, 4))


@ELEMENTS.before("GD218", "Take the element outside the step", same=False)
def queued_batch():
    batches: queue.Queue = queue.Queue()
    for _ in range(64):
        batches.put(cuda(8, 4))

    def step(x):
        y = batches.get()
        return x * y

    return given(step)


@ELEMENTS.after
def queued_batch_given():
    return lambda x, y: x * y, (cuda(8, 4), cuda(8, 4))


@ELEMENTS.before("GD218", "Take the element outside the step", same=False)
def generated_rate():
    def decayed():
        rate = 1.0
        while True:
            yield rate
            rate *= 0.9

    rates = decayed()

    def step(x):
        return x * next(rates)

    return given(step)


@ELEMENTS.after
def generated_rate_given():
    return given(lambda x, rate: x * rate, 1.0)


@ELEMENTS.before("GD205", "Take the element of the container outside", same=False)
def replayed_frames():
    frames = deque(cuda(8, 4) for _ in range(64))

    def step(x):
        return x - frames.popleft()

    return given(step)


@ELEMENTS.after
def replayed_frames_given():
    return lambda x, frame: x - frame, (cuda(8, 4), cuda(8, 4))


@ELEMENTS.before("GD218", "Take the element outside the step", same=False)
def sigmas_in_a_loop():
    """The rest of a schedule is consumed by an unpacked `next`, as samplers do it."""
    sigmas = iter([(1.0 / n, 1.0 / (n + 1)) for n in range(1, 64)])

    def step(x):
        now, after = next(sigmas)
        return x + x.sin() * (after - now)

    return given(step)


@ELEMENTS.after
def sigmas_given():
    return given(lambda x, now, after: x + x.sin() * (after - now), 1.0, 0.5)


@ELEMENTS.before("GD218", "Take the element outside the step", same=False)
def timesteps_of_a_sampler():
    timesteps = iter(range(999, -1, -1))

    def step(x):
        t = next(timesteps)
        return x * (t / 1000)

    return given(step)


@ELEMENTS.after
def timesteps_given():
    return given(lambda x, t: x * (t / 1000), 999.0)
