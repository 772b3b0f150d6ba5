"""Steps to capture whole on the emulated or on a real device, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.captures import Verification


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def exact(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether replays on the device in use must have equal bits; "cuda" works while a test runs."""
    torch.manual_seed(0)
    if request.param == "cuda":
        yield False
    else:
        with EmulatedDevice():
            yield True


def target_of(
    step: Callable[..., object], *shapes: tuple[int, ...], make: Callable[[], Inputs] | None = None
) -> Target:
    def fresh() -> Inputs:
        return Inputs(tuple(torch.randn(shape, device="cuda") for shape in shapes))

    return Target(
        name="step",
        file=__file__,
        entry="test",
        mode="training",
        step=step,
        fresh_inputs=make or fresh,
        roots={"step": step},
    )


def captured(target: Target) -> CapturedStep:
    result = capture_whole_step(target)
    assert isinstance(result, CapturedStep), result
    return result


def verified(target: Target, exact: bool, replays: int = 3) -> Verification:
    batches = [target.fresh_inputs() for _ in range(replays)]
    return verify_whole_step(target, captured(target), batches, exact=exact)


def line_of(file: str, text: str) -> int:
    """The only line of a file that ends in a marker."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {text}")]
    return found


def sgd_step(model: nn.Module, **options: float) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

    def step(data: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(data), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return step


class ScaledLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return data.square().mean() * (self.steps / 10)  # <- scale
