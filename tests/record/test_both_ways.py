"""As eager and as a capture sees it: two series of runs on a real device only where the step may tell them apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphdoctor.device.real import WatchedDevice
from graphdoctor.record import prepare, record
from graphdoctor.target import Inputs, Target
from graphdoctor.values.recording import Recording

Step = Callable[[torch.Tensor], torch.Tensor]


def recorded(step: Step) -> tuple[Recording, int]:
    """A recording of two iterations, and how often the step ran for it."""
    runs = 0

    def counted(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return step(x)

    target = Target(
        name="step",
        file="model.py",
        entry="step",
        mode="inference",
        step=counted,
        fresh_inputs=lambda: Inputs((torch.ones(3),)),
        roots={},
    )
    with WatchedDevice() as device:
        session = prepare(target, device, iterations=2)
        before = runs
        return record(session, progress=lambda doing: None), runs - before


def asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.cuda.is_current_stream_capturing() else x * 2


def never_asks(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def a_build_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, nothing is captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_a_step_that_asks_is_recorded_in_both_ways() -> None:
    found, runs = recorded(asks)
    assert [op.base_name for op in found.eager[0].ops] == ["mul"]
    assert [op.base_name for op in found.captured[0].ops] == ["add"]
    assert runs == 2 + 2 + 1


def test_a_step_that_never_asks_is_recorded_once() -> None:
    found, runs = recorded(never_asks)
    assert runs == 2 + 1
    for eager, captured in zip(found.eager, found.captured, strict=True):
        assert (eager.ops, eager.outputs) == (captured.ops, captured.outputs)
        assert captured.capturing and not eager.capturing


def test_a_step_that_asks_later_than_in_its_first_iterations() -> None:
    count = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return asks(x) if count > 5 else x * 2

    found, runs = recorded(step)
    assert [op.base_name for op in found.captured[1].ops] == ["add"]
    assert all(op.base_name == "mul" for one in found.eager for op in one.ops)
    assert runs >= 2 + 2 + 1
