"""Where eager is far away from itself, deterministic algorithms show what a capture freezes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.real import WatchedDevice
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.footprint import footprint
from graphdoctor.graphs.whole_step import (
    CapturedStep,
    capture_from_start,
    capture_whole_step,
)
from graphdoctor.proof.twins import deterministic_algorithms
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record import prepare
from graphdoctor.record.place import place
from graphdoctor.target import from_object
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.captures import WITHIN_DEVIATION, Verification

_NOISE = np.random.default_rng(
    0
)  # which no seed of a step reaches, as the order of atomic additions
_LARGEST = 0.2  # of each element


def noisy(x: torch.Tensor, largest: float = _LARGEST) -> torch.Tensor:
    return x * (1 + torch.from_numpy(_NOISE.uniform(-largest, largest, x.shape)).to(x))


def scattered(x: torch.Tensor, largest: float = _LARGEST) -> torch.Tensor:
    """The double of an operator whose sums come out otherwise each time, but for its deterministic kernel."""
    return x * 1.0 if torch.are_deterministic_algorithms_enabled() else noisy(x, largest)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with nullcontext() if request.node.get_closest_marker("gpu") else EmulatedDevice():
        yield


@dataclass
class Training:
    """A step of a weight, and the same step as a capture leaves it: `frozen` names what is other in it."""

    frozen: str = ""
    add: Callable[[torch.Tensor, float], torch.Tensor] = scattered
    roots: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roots["weight"] = torch.rand(64, device="cuda") + 0.5
        self.roots["other weight"] = torch.rand(64, device="cuda") + 0.5
        self.roots["gradient"] = torch.zeros(64, device="cuda")
        self.roots["rate"] = {"now": 0.1}
        self.roots["steps"] = {"count": 0}

    def step(self, data: torch.Tensor, frozen: str = "") -> torch.Tensor:
        weight, gradient = self.roots["weight"], self.roots["gradient"]
        if frozen != "zero_grad":
            gradient.zero_()
        gradient.add_(self.add(data * weight, 20 * _LARGEST if frozen == "order" else _LARGEST))
        self.roots["steps"]["count"] += 1
        if frozen == "by chance":
            self.roots["other weight"].copy_(self.add(self.roots["other weight"], _LARGEST))
        if frozen != "learning rate":
            self.roots["rate"]["now"] *= 0.9
        if frozen != "update":
            weight.sub_(self.roots["rate"]["now"] * gradient)
        return gradient.sum()

    def capture(self) -> CapturedStep | Refusal:
        start = snapshot(self.roots)
        static, first = inputs(), inputs().args[0]
        output = torch.zeros((), device="cuda")

        def replay() -> None:
            data = first if self.frozen == "batch" else static.args[0]
            output.copy_(self.step(data, self.frozen))

        seen = footprint(self.roots, static, output)
        start.restore()
        graph: Any = Graph(replay)
        return CapturedStep(graph, static, output, seen, start)


class Graph:
    """Stands in for a CUDA graph, whose kernels run anew in each replay."""

    device: Any = None

    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay = replay

    def reset(self) -> None:
        pass


def inputs() -> Inputs:
    return Inputs((torch.rand(64, device="cuda") + 0.5,))


def verdict(training: Training, *, exact: bool = False, recaptures: bool = True) -> Verification:
    target = Target("step", __file__, "test", "training", training.step, inputs, training.roots)
    captured = training.capture()
    assert isinstance(captured, CapturedStep)
    return verify_whole_step(
        target,
        captured,
        [inputs() for _ in range(3)],
        exact=exact,
        recapture=training.capture if recaptures else None,
    )


@pytest.mark.parametrize("exact", [True, False])
def test_a_step_that_is_far_away_from_itself_is_proved_by_deterministic_algorithms(
    exact: bool,
) -> None:
    found = verdict(Training(), exact=exact)
    assert (found.status, found.method) == ("verified", WITHIN_DEVIATION), found
    assert "with deterministic algorithms, replays equal eager's" in found.reason
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    assert verdict(Training(), exact=exact, recaptures=False).status == "not-verified"


@pytest.mark.parametrize("frozen", ["learning rate", "batch", "zero_grad", "update"])
def test_noise_hides_nothing_that_a_capture_freezes(frozen: str) -> None:
    assert verdict(Training(frozen)).status != "verified"


def test_a_learning_rate_that_noise_hides_is_wrong_without_the_noise() -> None:
    found = verdict(Training("learning rate"))
    assert found.status == "wrong", found
    assert verdict(Training("learning rate"), recaptures=False).status == "not-verified"


def test_nothing_is_proved_where_an_operator_has_no_deterministic_kernel() -> None:
    found = verdict(Training(add=noisy))
    assert found.status == "not-verified"
    assert "neither eager nor a replay repeats itself" in found.reason


def test_python_state_that_stops_advancing_is_told() -> None:
    found = verdict(Training())
    assert found.status == "verified", found
    assert "host state stops advancing (rate.now, steps.count)" in found.reason


def test_a_tensor_that_stood_still_in_the_few_runs_of_eager_may_move_as_others_do() -> None:
    found = verdict(Training("by chance"))
    assert (found.status, found.method) == ("verified", WITHIN_DEVIATION), found
    assert verdict(Training("by chance"), recaptures=False).status == "wrong"
    assert verdict(Training("by chance", add=noisy)).status == "wrong"


def test_nothing_is_proved_where_replays_are_farther_away_than_eager_from_itself() -> None:
    found = verdict(Training("order"))
    assert found.status != "verified", found


@pytest.mark.gpu
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_gpu_s_atomic_additions_are_proved_in_one_order(is_frozen: bool) -> None:
    """Additions that cancel leave their rounding, which another order makes another number."""
    half = torch.randn(1 << 16, device="cuda")
    values, index = torch.cat([half, -half]), torch.zeros(1 << 17, dtype=torch.int64, device="cuda")
    roots: dict[str, Any] = {"weight": torch.zeros(1, device="cuda"), "rate": {"now": 1.0}}

    def step(data: torch.Tensor) -> torch.Tensor:
        rounding = torch.zeros(1, device="cuda").index_add_(0, index, values * data)
        if is_frozen:
            roots["rate"]["now"] *= 0.9
        return roots["weight"].add_(1e3 * rounding + roots["rate"]["now"] * data)

    def inputs() -> Inputs:
        return Inputs((torch.rand(1, device="cuda") + 0.5,))

    target = Target("step", __file__, "test", "training", step, inputs, roots)
    captured = capture_whole_step(target)
    assert isinstance(captured, CapturedStep)
    found = verify_whole_step(
        target,
        captured,
        [inputs() for _ in range(3)],
        exact=False,
        recapture=lambda: capture_whole_step(target),
    )
    assert found.status == ("wrong" if is_frozen else "verified"), found


@pytest.mark.gpu
def test_a_step_whose_kernels_cudnn_looks_for_is_captured_in_one_order() -> None:
    """As dcgan's: cuDNN's search for its deterministic kernels must not fall into the capture."""
    model = torch.nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False).cuda()

    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    data = torch.randn(16, 64, 32, 32, device="cuda")
    with WatchedDevice() as device, torch.backends.cudnn.flags(benchmark=True):
        session = prepare(place(from_object(step, data), device), device, iterations=3)
        with deterministic_algorithms():
            captured = capture_from_start(session, is_warm=False)
    assert isinstance(captured, CapturedStep), captured
