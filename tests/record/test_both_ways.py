"""As eager and as a capture sees it: two series of runs only where the step may tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.real import WatchedDevice
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record import prepare, record
from graphdoctor.target import Inputs, Target
from graphdoctor.values.recording import Recording

Step = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(params=[WatchedDevice, EmulatedDevice])
def device(request: pytest.FixtureRequest) -> Iterator[WatchedDevice | EmulatedDevice]:
    with request.param() as entered:
        yield entered


def recorded(
    step: Step, device: WatchedDevice | EmulatedDevice
) -> tuple[Recording, int, EagerRuns]:
    """A recording of two iterations, how often the step ran for it, and what is noted of eager."""
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
    session = prepare(target, device, iterations=2)
    before, ran = runs, EagerRuns(session)
    found = record(session, progress=lambda doing: None, look=ran.look)
    return found, runs - before, ran


def asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.cuda.is_current_stream_capturing() else x * 2


def never_asks(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def a_build_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, nothing is captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_a_step_that_asks_is_recorded_in_both_ways(
    device: WatchedDevice | EmulatedDevice,
) -> None:
    found, runs, _ = recorded(asks, device)
    assert [op.base_name for op in found.eager[0].ops] == ["mul"]
    assert [op.base_name for op in found.captured[0].ops] == ["add"]
    assert runs == 2 + 2 + 1


def test_a_step_that_never_asks_is_recorded_once(
    device: WatchedDevice | EmulatedDevice,
) -> None:
    found, runs, ran = recorded(never_asks, device)
    assert runs == 2 + 1
    for eager, captured in zip(found.eager, found.captured, strict=True):
        assert (eager.ops, eager.outputs) == (captured.ops, captured.outputs)
        assert captured.capturing and not eager.capturing
    assert len(ran.digests) == len(ran.hosts) == 2


def test_a_step_that_asks_later_than_in_its_first_iterations(
    device: WatchedDevice | EmulatedDevice,
) -> None:
    count = 0
    warm = 4 if device.kind == "cuda" else 2  # warm-ups, one of them as captured

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return asks(x) if count > warm + 1 else x * 2

    found, runs, ran = recorded(step, device)
    assert [op.base_name for op in found.captured[1].ops] == ["add"]
    assert all(op.base_name == "mul" for one in found.eager for op in one.ops)
    assert runs >= 2 + 2 + 1
    assert len(ran.digests) == len(ran.hosts) == 2
    assert ran.digests[0].tensors["output"] == ran.digests[1].tensors["output"]  # both eager's
