"""The emulated device, seeded, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from tests.support.emulated import one_thread

__all__ = ["device", "one_thread"]


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    torch.manual_seed(0)
    with EmulatedDevice() as emulated:
        yield emulated
