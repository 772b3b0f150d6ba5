"""What recording costs over running an operator, at growing lengths of the step.

Prints microseconds of one thread's processor time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import datetime
import gc
import platform
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record import prepare
from graphdoctor.record.record import record_series
from graphdoctor.target import from_object

LIMIT_US = 40
RUNS = {1_000: 5, 10_000: 3, 100_000: 1}  # by the length of the step, in operators
ITERATIONS = 4  # as analyze records them: each series begins by putting the state back


class Pointwise(nn.Module):
    """A step of `operators` small kernels, five to a submodule, some calls deep."""

    def __init__(self, operators: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ReLU() for _ in range(operators // 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x * 0.5 + 1.0) - x.mean()
        return x


def pointwise(operators: int) -> Callable[[], object]:
    def build() -> object:
        return Pointwise(operators).cuda().eval(), (torch.rand(8, device="cuda"),)

    return build


def training(operators: int) -> Callable[[], object]:
    """Forward, backward and SGD of a deep chain of linear layers: about 20 operators a layer."""

    def build() -> object:
        blocks = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(operators // 21))
        model = nn.Sequential(*blocks).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return SimpleNamespace(
            step=step, inputs=(torch.rand(4, 8, device="cuda"),), state=[model, optimizer]
        )

    return build


def cost(build: Callable[[], object], *, runs: int) -> tuple[int, float, float]:
    """The operators of the step, and microseconds for each: running it, and recording it."""
    run_us = _running_us(build, runs=runs)
    with EmulatedDevice() as device:
        session = prepare(from_object(build), device, iterations=ITERATIONS)
        operators = len(record_series(session, capturing=False)[0].ops)
        series_us = _median_us(lambda: record_series(session, capturing=False), runs=runs)
    return operators, run_us / operators, series_us / ITERATIONS / operators


def _running_us(build: Callable[[], object], *, runs: int) -> float:
    """The same step on the same CPU, without the emulated device."""
    described: Any
    with EmulatedDevice():
        described = build()  # its tensors lie on the CPU, whatever it calls them
    step, inputs = (
        (described.step, described.inputs)
        if isinstance(described, SimpleNamespace)
        else (described[0], described[1])
    )
    for _ in range(3):
        step(*inputs)
    return _median_us(lambda: step(*inputs), runs=runs)


def _median_us(call: Callable[[], object], *, runs: int) -> float:
    times_us = []
    for _ in range(runs):
        gc.collect()
        start = time.process_time()
        call()
        times_us.append((time.process_time() - start) * 1e6)
    return statistics.median(times_us)


def main() -> None:
    torch.set_num_threads(1)
    today = datetime.date.today().isoformat()
    print(f"{_processor()}, Python {platform.python_version()}, torch {torch.__version__}, {today}")
    print(
        f"{'step':<12}{'operators':>10}{'running':>10}{'recorded':>10}{'over it':>10}  us/operator"
    )
    for name, make in (("pointwise", pointwise), ("training", training)):
        for length, runs in RUNS.items():
            operators, run_us, record_us = cost(make(length), runs=runs)
            over_us = record_us - run_us
            verdict = "" if over_us <= LIMIT_US else f"  over the limit of {LIMIT_US}"
            print(
                f"{name:<12}{operators:>10,}{run_us:>10.1f}{record_us:>10.1f}{over_us:>10.1f}{verdict}"
            )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(
                line.split(":", 1)[1].strip() for line in info if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
