"""How many digits a step's own arithmetic keeps, and what that proves of a comparator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record import prepare, record
from graphdoctor.strategies.trial import Digits, digits_of
from graphdoctor.target import Inputs, Target
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import a_session, a_target, on_a_gpu


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_where_products_take_tf32_half_of_its_digits_must_agree(device: EmulatedDevice) -> None:
    class LikeTF32(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * (1 + 2e-3)

    with tf32_products(True):
        coarse = on_a_gpu(device, LikeTF32(), target=a_target())
    with tf32_products(False):
        fine = on_a_gpu(device, LikeTF32(), target=a_target())
    assert coarse.status == "verified", coarse.reason
    assert coarse.verification is not None
    assert coarse.verification.method == "to half of TF32's digits"
    assert coarse.deviation == pytest.approx(2e-3, rel=0.1)
    assert fine.status == "wrong"


def test_a_convolution_has_the_digits_of_tf32_unless_that_is_forbidden(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _of(torch.nn.Conv2d(3, 4, 3), 1, 3, 8, 8)
    session = prepare(target, device, iterations=2)
    iteration = record(session, progress=lambda doing: None).captured[-1]
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert digits_of(iteration) == Digits("TF32", 2**-11)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
        assert digits_of(iteration) == Digits()
        monkeypatch.undo()
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert digits_of(iteration) == Digits()


def test_products_under_autocast_have_the_digits_of_a_half(device: EmulatedDevice) -> None:
    _, known = a_session(device)
    assert digits_of(known.iteration) == Digits()
    product_op = next(op for op in known.iteration.ops if op.base_name == "addmm")
    halves = tuple(msgspec.structs.replace(use, dtype="bfloat16") for use in product_op.inputs)
    half = msgspec.structs.replace(product_op, args=halves)
    iteration = msgspec.structs.replace(known.iteration, ops=(*known.iteration.ops, half))
    assert digits_of(iteration) == Digits("bfloat16", 2**-7)


class Chaotic(torch.nn.Module):
    """Keeps what one rounding of its weight decides, and what it does not; returns neither."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 64))
        self.register_buffer("decided", torch.zeros(64))
        self.register_buffer("steady", torch.zeros(64))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.decided.copy_(torch.sin(self.weight * 1e8))
        self.steady.copy_(self.weight * 2)
        return self.weight * data


@pytest.mark.parametrize(("buffer", "is_rounding"), [("decided", True), ("steady", False)])
def test_what_one_rounding_of_its_state_moves_in_eager_is_unproved_for_that_reason(
    device: EmulatedDevice, buffer: str, is_rounding: bool
) -> None:
    class OtherBuffer(fakes.Fake):
        is_ours = False

        def change(self, outputs: Any) -> Any:
            kept = self.built.session.target.roots["model"].get_buffer(buffer)
            with torch.no_grad():
                kept.add_(0.5)
            return outputs

    row = on_a_gpu(device, OtherBuffer(), target=_of(Chaotic(), 64))
    assert row.status == "not-verified"
    assert row.reason.startswith(f"the outputs agree, but model.{buffer} differs")
    assert ("is rounded before each step" in row.reason) is is_rounding
    assert (row.measurement is not None) is is_rounding, "it takes its time all the same"


def _of(model: torch.nn.Module, *shape: int) -> Target:
    model = model.cuda()
    return Target(
        "step",
        __file__,
        "test",
        "inference",
        torch.no_grad()(model),
        lambda: Inputs((torch.randn(*shape, device="cuda"),)),
        {"model": model},
    )


class Choosing(torch.nn.Module):
    """Returns which of two scores is the larger, in 64 rows: the second is, by `gap` of itself."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        one = torch.linspace(1, 2, 64)
        self.scores = torch.nn.Parameter(torch.stack((one, one * (1 + gap)), 1))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.scores.argmax(1)


@pytest.mark.parametrize(("gap", "status"), [(1e-7, "not-verified"), (0.1, "wrong")])
def test_another_choice_among_nearly_equal_scores_is_unproved_and_among_others_wrong(
    device: EmulatedDevice, gap: float, status: str
) -> None:
    class OtherChoice(fakes.Fake):
        is_ours = False

        def change(self, outputs: Any) -> Any:
            return 1 - outputs

    row = on_a_gpu(device, OtherChoice(), target=_of(Choosing(gap), 64))
    assert row.status == status, row.reason
    assert ("is rounded before each step" in row.reason) is (status == "not-verified")
