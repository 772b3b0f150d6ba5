"""Measures how many times longer work takes on this host than on a server, without a GPU.

Nothing of CUDA runs here, so each factor is that of work which the host does alike with and without a GPU:
calls of Python, PyTorch's dispatcher, autograd's nodes, an optimizer's own loop, and compiled code in the
place of a launch. `reference.toml` has what each took on a reference machine, and how far that machine
is from the class `server`.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import median, quantiles
from typing import Any

from msgspec import Struct, convert

from graphdoctor.estimate.gpus import Figure
from graphdoctor.estimate.hosts import HostProfile

KINDS = ("python", "dispatcher", "autograd", "optimizer", "launches")
BUDGET_S = 2.0
_BLOCK_S = 0.0005  # short enough that many blocks fall between two interruptions
_NOISY = 1.5  # an upper quartile that far above the least says that the machine was busy
Clock = Callable[[], float]
Work = Callable[[], object]


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    """What one call took on the reference machine in us, and its factor to the class `server`."""

    times: Figure
    took_us: dict[str, float]


class Measured(Struct, frozen=True):
    """One kind of work: the least that a call took, its median, and its upper quartile, in us."""

    least_us: float
    median_us: float
    upper_us: float

    @property
    def is_noisy(self) -> bool:
        return self.upper_us > _NOISY * self.least_us


class MeasuredHost(Struct, frozen=True):
    """The profile of this machine, and what was seen on the way to it."""

    profile: HostProfile
    seen: tuple[str, ...]


def measure_host(name: str, software: str) -> MeasuredHost:
    """Take about `BUDGET_S` seconds; `name` is the processor's, `software` PyTorch's and Python's."""
    return profile_of(name, software, _measured())


def profile_of(name: str, software: str, measured: Mapping[str, Measured]) -> MeasuredHost:
    """The factors from what each kind of work took.

    The least counts: whatever else runs on the machine only ever makes a call take longer.
    """
    reference = _reference()
    figures, seen = {}, []
    for kind in KINDS:
        found, there_us = measured[kind], reference.took_us[kind]
        ratio, times = found.least_us / there_us, reference.times
        source = (
            f"measured by graphdoctor calibrate --host on {name}, {software}: {found.least_us:.3g} us over"
            f" {there_us:.3g} us on the reference machine, {times.mid:g} times a server: {times.source}"
        )
        figure = Figure(times.low * ratio, times.mid * ratio, times.high * ratio, source)
        figures[kind] = figure
        noisy = "; noisy, other work runs on this machine" if found.is_noisy else ""
        seen.append(
            f"{kind}: {found.least_us:.3f} us at least, {found.median_us:.3f} us in the median,"
            f" {figure.mid:.2f} ({figure.low:.2f} to {figure.high:.2f}) times a server's{noisy}"
        )
    return MeasuredHost(HostProfile(name="measured", title=name, **figures), tuple(seen))


def works(torch: Any) -> dict[str, Work]:
    """What one call of each kind is."""
    tiny, identity = torch.ones(16), torch.nn.Identity()
    wanting = torch.ones(16, requires_grad=True)
    gradient = torch.ones(16)
    parameters = [torch.nn.Parameter(torch.ones(16)) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.ones(16)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    many = [torch.ones(16) for _ in range(32)]

    def chain() -> object:
        tensor = wanting
        for _ in range(8):
            tensor = tensor * wanting
        return torch.autograd.grad(tensor, wanting, gradient)

    return {
        "python": lambda: identity(tiny),
        "dispatcher": lambda: tiny.view(-1),
        "autograd": chain,
        "optimizer": optimizer.step,
        "launches": lambda: torch._foreach_neg_(many),
    }


def _measured() -> dict[str, Measured]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return timed(works(torch), time.perf_counter, BUDGET_S)
    finally:
        torch.set_num_threads(threads)


def timed(found: Mapping[str, Work], clock: Clock, budget_s: float) -> dict[str, Measured]:
    """Time blocks of calls in turn for so many seconds: what disturbs some blocks spares others."""
    ends = clock() + budget_s
    calls = {kind: _calls_of_a_block(work, clock) for kind, work in found.items()}
    taken: dict[str, list[float]] = {kind: [] for kind in found}
    is_first = True
    while is_first or clock() < ends:
        is_first = False
        for kind, work in found.items():
            begin = clock()
            for _ in range(calls[kind]):
                work()
            taken[kind].append((clock() - begin) / calls[kind] * 1e6)
    return {kind: _summary(samples) for kind, samples in taken.items()}


def _summary(samples: Sequence[float]) -> Measured:
    upper = quantiles(samples, n=4)[2] if len(samples) > 1 else samples[0]
    return Measured(min(samples), median(samples), upper)


def _calls_of_a_block(work: Work, clock: Clock) -> int:
    for _ in range(3):
        work()
    begin = clock()
    work()
    return max(1, round(_BLOCK_S / max(1e-7, clock() - begin)))


@cache
def _reference() -> Reference:
    text = (files(__package__) / "reference.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text), Reference)
