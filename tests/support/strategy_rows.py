"""A small step and what is known of it, outcomes of strategies as rows, a GPU that is believed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.record import prepare, record
from graphdoctor.record.session import Session
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.trial import Terms, carry_out
from graphdoctor.target import Inputs, Target
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Iteration
from graphdoctor.values.speed import Measurement, StrategyOutcome

PROFILE = load_profile("h100")
TERMS = Terms(PROFILE)
STEP_FILE = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

def graphdoctor_target():
    return model.cuda().eval(), (torch.randn(4, 8, device="cuda"),)
"""


def a_target() -> Target:
    model = torch.nn.Linear(8, 8).cuda()
    counted = SimpleNamespace(calls=0)

    def step(data: torch.Tensor) -> torch.Tensor:
        counted.calls += 1
        with torch.no_grad():
            model.bias.add_(0.5)
            return torch.relu(model(data))

    def data() -> Inputs:
        return Inputs((torch.randn(4, 8, device="cuda"),))

    roots = {"model": model, "counted": counted}
    return Target("step", __file__, "test", "inference", step, data, roots)


@lru_cache(maxsize=1)
def a_session(device: EmulatedDevice) -> tuple[Any, Known]:
    """Trials leave the step as it was, so those on one device share it."""
    return session_of(a_target(), device)


def session_of(target: Target, device: EmulatedDevice) -> tuple[Any, Known]:
    session = prepare(target, device, iterations=3)
    recording = record(session, progress=lambda doing: None)
    return session, Known("inference", target.roots, (), ("",), recording.captured[-1])


def try_strategy(
    strategy: Strategy, session: Session, known: Known, *, terms: Terms
) -> StrategyOutcome:
    """Foreseen, and tried where it fits; what generates code is only planned on the emulated device."""
    row = foresee(strategy, known, terms.profile)
    if row.status != "planned" or (strategy.compiles and session.device.kind == "emulated"):
        return row
    return carry_out(row, strategy, session, known, terms=terms)


def tried(device: EmulatedDevice, strategy: Strategy) -> StrategyOutcome:
    session, known = a_session(device)
    return try_strategy(strategy, session, known, terms=TERMS)


class CalledCuda:
    """The emulated device, believed to be a real one: so that what only a GPU is asked for runs."""

    kind = "cuda"

    def __init__(self, device: EmulatedDevice) -> None:
        self.table = device.table
        self.observed_by = device.observed_by
        self.assuming_capture = device.assuming_capture
        self.device_name_of = device.device_name_of
        self.meeting = device.meeting


def on_a_gpu(
    device: EmulatedDevice,
    strategy: Strategy,
    *,
    is_random: bool = False,
    target: Target | None = None,
) -> StrategyOutcome:
    session, known = session_of(target, device) if target else a_session(device)
    session = replace(session, device=CalledCuda(device))
    if is_random:
        known = replace(known, iteration=drawing(known.iteration))
    return try_strategy(strategy, session, known, terms=Terms(PROFILE, measure_s=0.05))


def drawing(iteration: Iteration) -> Iteration:
    """Its first operator draws random numbers."""
    first, *others = iteration.ops
    first = msgspec.structs.replace(first, tags=(*first.tags, "nondeterministic_seeded"))
    return msgspec.structs.replace(iteration, ops=(first, *others))


def outcome(
    name: str,
    *,
    status: Any = "verified",
    predicted: float | None = None,
    measured: tuple[float, float, float] | None = None,
    eager_us: float = 1000.0,
    is_ours: bool = True,
) -> StrategyOutcome:
    return StrategyOutcome(
        strategy=name,
        title=f"the way of {name}",
        is_ours=is_ours,
        status=status,
        predicted=Range(predicted * 0.8, predicted, predicted * 1.2) if predicted else None,
        measurement=measurement(*measured, eager_us=eager_us) if measured else None,
        code=f"use {name}\n",
    )


def measurement(low: float, mid: float, high: float, *, eager_us: float = 1000.0) -> Measurement:
    word: Any = "faster" if low > 1 else "slower" if high < 1 else "no change"
    return Measurement(
        eager_us=eager_us,
        graph_us=eager_us / mid,
        speedup=mid,
        speedup_low=low,
        speedup_high=high,
        confidence=0.95,
        blocks=30,
        calls_per_block=20,
        word=word,
        gpu="NVIDIA H200",
    )
