"""Changes of what a captured model guards, and what of it is frozen: no call returns a stale answer."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import assert_equal, rand, replayed, why
from tests.support.emulated import device as device


class _Config:
    gain = 1.0

    def __init__(self) -> None:
        self.gain = 1.0


Forward = Callable[[Any, torch.Tensor], Any]


class Reading(nn.Module):
    """Reads in its forward what `reads` says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(8.0) + 1)
        self.config = _Config()
        self.long = torch.full((100,), 2.0, device="cpu")


def _model(reads: Forward) -> Any:
    kind = type("Reads", (Reading,), {"forward": lambda self, x: self.layer(x) * reads(self, x)})
    return kind().cuda().eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("reads", "change", "named"),
    [
        (lambda m, x: m.config.gain, "m.config.gain = 2.0", "config.gain"),
        (lambda m, x: m.table.sum(), "m.table.data = m.table.data[:4]", "shape of"),
        (lambda m, x: m.table.sum(), "m.table.resize_(4)", "shape of"),
        (lambda m, x: x @ m.layer.weight, "m.layer.weight.t_()", "strides of"),
        (lambda m, x: m.long[70].item(), "m.long.fill_(3)", "long"),
        (lambda m, x: m.table.scale, "m.table.scale = 2.0", "scale"),
    ],
)
def test_a_change_of_what_the_forward_reads_is_eager(
    device: EmulatedDevice, reads: Forward, change: str, named: str
) -> None:
    m = _model(reads)
    m.table.scale = 1.0
    fast = graphdoctor.capture(m, rand(3, 4))
    assert fast.plan.how == "whole"
    assert_equal(fast, m, rand(3, 4))
    exec(change, {"m": m, "torch": torch})
    for _ in range(2):
        assert_equal(fast, m, rand(3, 4))
    assert replayed(fast) == 1 and named in why(fast)


@pytest.mark.parametrize("is_negative", [False, True])
def test_a_negative_view_is_another_call(device: EmulatedDevice, is_negative: bool) -> None:
    model = _model(lambda m, x: 2 if x.is_neg() else 3)
    fast = graphdoctor.capture(model, rand(3, 4))
    given = rand(3, 4)
    for _ in range(2):
        assert_equal(fast, model, torch._neg_view(given) if is_negative else given)
    assert replayed(fast) == (0 if is_negative else 2)


@pytest.mark.parametrize("how", ["freed", "shorter"])
def test_memory_of_the_host_that_is_gone_is_not_read(device: EmulatedDevice, how: str) -> None:
    model = _model(lambda m, x: 2.0)
    fast = graphdoctor.capture(model, rand(3, 4))
    model.long.untyped_storage().resize_(0 if how == "freed" else 8)
    assert_equal(fast, model, rand(3, 4))


@pytest.mark.parametrize(
    "held",
    [
        lambda: np.ones(1 << 20),
        lambda: np.array([SimpleNamespace(gain=1.0)], dtype=object),
        lambda: io.StringIO("2"),
        lambda: logging.getLogger("tests.captured.stale"),
        lambda: iter([1.0, 2.0]),
        lambda: torch.Generator().manual_seed(3),
    ],
)
def test_what_is_frozen_at_capture_keeps_no_model_from_being_captured(
    device: EmulatedDevice, held: Callable[[], Any]
) -> None:
    model = _model(lambda m, x: 2.0)
    model.held = held()
    fast = graphdoctor.capture(model, rand(3, 4))
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 1


def test_the_content_of_a_file_is_frozen_at_capture(device: EmulatedDevice, tmp_path: Any) -> None:
    path = tmp_path / "gain.txt"
    path.write_text("2")
    model = _model(lambda m, x: float(path.read_text()))
    fast = graphdoctor.capture(model, rand(3, 4))
    assert_equal(fast, model, rand(3, 4))
    assert fast.plan.how == "whole" and replayed(fast) == 1


def test_a_copy_of_an_object_changes_nothing(device: EmulatedDevice) -> None:
    model = _model(lambda m, x: m.config.gain)
    fast = graphdoctor.capture(model, rand(3, 4))
    copy.copy(model.config)
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 1


class _RaisesInCapture(nn.Linear):
    """As BridgeTower does, whose library takes a path that fails while it is captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("no capture here")
        return super().forward(x)


@pytest.mark.parametrize(
    ("mode", "sizes"), [("inference", None), ("training", None), ("inference", [2, 3])]
)
def test_a_model_that_raises_only_in_a_capture_stays_eager(
    device: EmulatedDevice, mode: Any, sizes: list[int] | None
) -> None:
    model = _RaisesInCapture(4, 4).cuda()
    fast = graphdoctor.capture(model, rand(3, 4), mode=mode, sizes=sizes)
    assert fast.plan.how == "eager" and "no capture here" in fast.explain()
    assert_equal(fast, model, rand(3, 4))
