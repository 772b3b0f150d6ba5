"""The emulated device, seeded, on one thread; what would be fresh processes are forks, which import nothing anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.processes import process
from tests.support import warm
from tests.support.emulated import one_thread

__all__ = ["device", "one_thread"]


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    torch.manual_seed(0)
    with EmulatedDevice() as emulated:
        yield emulated


@pytest.fixture(autouse=True)
def _processes_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "command", warm.job)
