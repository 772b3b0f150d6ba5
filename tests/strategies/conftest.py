"""The emulated device, seeded, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    torch.manual_seed(0)
    with EmulatedDevice() as emulated:
        yield emulated
