"""Python state that a step changes: no replay does, so that each kind of it is named, with its line."""

from __future__ import annotations

import enum
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphdoctor.record.host.host_events import _LOOKS
from graphdoctor.values.report import Report
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 4)
COUNTED = {"calls": 0}


def line_of(text: str) -> str:
    """Where a text stands in this file for the first time, as reports name it."""
    lines = Path(__file__).read_text().splitlines()
    return f"test_python_state.py:{next(n for n, one in enumerate(lines, 1) if text in one)}"


@dataclass
class Config:
    rate: float = 0.0


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Meter:
    total = 0.0

    def update(self) -> None:
        self.total += 1.0


class Mode(enum.Enum):
    ONE = 1
    TWO = 2

    def other(self) -> Mode:
        return {Mode.ONE: Mode.TWO, Mode.TWO: Mode.ONE}[self]


def full_deque() -> deque[int]:
    return deque([1, 2, 3], maxlen=3)


def stopped(report: Report) -> list[str]:
    """The remarks about state that replays do not change."""
    return [one for one in report.limits if "in Python; replays do not" in one]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "list": (list, lambda held: held.append(1)),
    "item": (lambda: [0], lambda held: held.__setitem__(0, held[0] + 1)),
    "long list": (lambda: [0] * 999, lambda held: held.__setitem__(3, held[3] + 1)),
    "set": (set, lambda held: held.add(len(held))),
    "full deque": (full_deque, lambda held: held.append(held[-1] + 1)),
    "defaultdict": (lambda: defaultdict(int), lambda held: held.__setitem__("a", held["a"] + 1)),
    "Counter": (Counter, lambda held: held.update("a")),
    "array": (lambda: np.zeros(4), lambda held: held.__iadd__(1)),
    "number of NumPy's": (lambda: [np.int64(0)], lambda held: held.__setitem__(0, held[0] + 1)),
    "enum": (lambda: [Mode.ONE], lambda held: held.__setitem__(0, held[0].other())),
    "dataclass": (Config, lambda held: setattr(held, "rate", 0.9 * held.rate + 0.1)),
    "slots": (Slots, lambda held: setattr(held, "calls", held.calls + 1)),
    "object": (Meter, Meter.update),
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_every_kind_that_stops_is_named_with_its_line(kind: str) -> None:
    make, change = KINDS[kind]
    held = make()

    def step(x: torch.Tensor) -> torch.Tensor:
        change(held)  # of every kind
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "safe"
    (said,) = stopped(report)
    where = "self.total +=" if kind == "object" else f'"{kind}": ('
    assert f"({line_of(where)})" in said and "held" in said
    assert "Replays do not update held" in report.reason


def on_module(model: nn.Sequential, hook: Callable[..., None]) -> None:
    model[0].register_forward_hook(hook)


def on_gradient(model: nn.Sequential, hook: Callable[..., None]) -> None:
    model[0].weight.register_hook(hook)


def on_optimizer(model: nn.Sequential, hook: Callable[..., None]) -> None:
    OPTIMIZERS[0].register_step_post_hook(hook)


OPTIMIZERS: list[torch.optim.Optimizer] = []


@pytest.mark.parametrize("register", [on_module, on_gradient, on_optimizer])
def test_what_a_hook_counts_is_named_with_the_hooks_line(register: Callable[..., None]) -> None:
    model, seen = nn.Sequential(nn.Linear(8, 4)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    OPTIMIZERS[:] = [optimizer]
    register(model, lambda *args: seen.append(1))  # in a hook

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert f"do not update seen ({line_of('# in a hook')})" in reported(step).reason


def test_what_a_hook_of_all_modules_counts_is_named() -> None:
    seen: list[int] = []
    handle = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(1))
    try:
        assert "do not update seen" in reported(lambda x: LINEAR(x)).reason
    finally:
        handle.remove()


def test_globals_and_those_of_a_module_that_the_step_imports_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(tmp_path, "counting.py").write_text("N = 0\ndef count():\n    global N\n    N += 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def step(x: torch.Tensor) -> torch.Tensor:
        import counting  # type: ignore[import-not-found]

        counting.count()
        COUNTED["calls"] += 1
        return LINEAR(x)

    try:
        (said,) = stopped(reported(step))
    finally:
        sys.modules.pop("counting", None)
    assert "counting.py:4" in said and "COUNTED.calls" in said


def test_a_cache_that_is_filled_once_and_what_torch_counts_are_not_named() -> None:
    model, cache = nn.Linear(8, 4), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10**6)

    def step(x: torch.Tensor) -> torch.Tensor:
        if "ones" not in cache:
            cache["ones"] = 1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    assert not stopped(reported(step))


class Every(nn.Module):
    """Counts its calls."""

    def __init__(self, decide: Callable[[Any], bool]) -> None:
        super().__init__()
        self.linear, self.calls, self.kept = nn.Linear(8, 4), 0, []
        self.decide = decide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept.append(self.calls)
        return self.linear(x * 2 if self.decide(self) else x)


@pytest.mark.parametrize(
    "decide", [lambda self: self.calls == 1, lambda self: self.calls < 2, lambda self: False]
)
def test_what_is_decided_once_for_ever_is_no_doubt(decide: Callable[[Any], bool]) -> None:
    assert reported(Every(decide)).verdict == "safe"


def test_an_assertion_about_a_counter_is_no_doubt() -> None:
    model = Every(lambda self: False)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        assert model.calls % 7 != 100
        return y

    assert reported(step).verdict == "safe"


def test_many_counts_are_told_of_without_being_looked_at_after_each_line() -> None:
    many = _LOOKS + 1
    counts = Counter(dict.fromkeys(range(many), 0))

    def step(x: torch.Tensor) -> torch.Tensor:
        for key in range(many):
            counts[key] += 1
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "safe"
    assert any(f"and {many - 3} more in Python" in limit for limit in report.limits)


class Shared:
    calls = 0


def test_a_classs_count_is_known_through_its_objects() -> None:
    shared = Shared()

    def step(x: torch.Tensor) -> torch.Tensor:
        Shared.calls += 1
        return LINEAR(x) * 2 if shared.calls == 5_000 else LINEAR(x)  # branch

    (finding,) = reported(step).findings
    assert finding.rule == "GD217" and ".calls" in finding.message
    assert finding.location is not None
    assert f"test_python_state.py:{finding.location.line}" == line_of("# branch")
