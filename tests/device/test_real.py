"""A device that is only watched shows the operators that the emulated one shows."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.real import WatchedDevice
from tests.support.emulated import Seen


def emulated(seen: Seen) -> AbstractContextManager[None]:
    @contextmanager
    def observing():
        with EmulatedDevice() as device, device.observed_by(seen):
            yield

    return observing()


def watched(seen: Seen) -> AbstractContextManager[None]:
    @contextmanager
    def observing():
        with WatchedDevice() as device, device.observed_by(seen):
            yield

    return observing()


@pytest.mark.parametrize("observing", [emulated, watched])
def test_a_tensor_made_of_two_shows_the_operators_of_both(observing) -> None:
    double = TwoTensor(torch.ones(3), torch.zeros(3))
    seen = Seen()
    with observing(seen):
        double * 2
    assert seen.calls.count("mul") == 2


@pytest.mark.parametrize("observing", [emulated, watched])
def test_operators_are_seen_once_and_results_are_the_operator_s_own(observing) -> None:
    seen = Seen()
    with observing(seen):
        result = torch.ones(3).add_(1).sum()
    assert seen.calls == ["ones", "add_", "sum"]
    assert result.item() == 6
