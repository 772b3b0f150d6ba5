"""The device that a test's program runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def on_device(request: pytest.FixtureRequest) -> Iterator[None]:
    with EmulatedDevice() if request.param == "emulated" else nullcontext():
        _make_cublas_handle()
        yield


@pytest.fixture
def on_emulated_device() -> Iterator[None]:
    """For what only the emulated device shows, such as each operator that reads."""
    with EmulatedDevice():
        _make_cublas_handle()
        yield


def _make_cublas_handle() -> None:
    """As it may not be made in a capture."""
    ones = torch.ones(4, 4, device="cuda")
    ones @ ones
