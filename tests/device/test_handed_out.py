"""Whose memory it is: NumPy and other libraries may have the host's, and torch's writes and theirs meet there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.observe.known_results import results_known
from graphdoctor.target.state.saved_tensor import copied_when_written
from tests.support.emulated import device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")
SIZE = 512


def test_a_product_on_the_host_is_numpy_s_memory_too_and_no_other_product_changes_with_it() -> None:
    x, w = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    with results_known(1 << 30):
        expected = (x @ w).clone()
        y = x @ w
        seen = y.numpy()
        seen[0, 0] = 7.0
        assert y[0, 0] == 7.0 and torch.equal(x @ w, expected)
        y.add_(1)
        assert seen[0, 0] == 8.0 and torch.equal(x @ w, expected)


def test_what_numpy_wrote_is_another_input() -> None:
    x, w = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    with results_known(1 << 30):
        before = (x @ w) @ w
        y = x @ w
        y.numpy()[0] = 0.0
        assert not torch.equal(y @ w, before)


def test_what_is_copied_to_the_host_is_memory_of_its_own() -> None:
    x, w = torch.randn(SIZE, SIZE).cuda(), torch.randn(SIZE, SIZE).cuda()
    with results_known(1 << 30):
        y = x @ w
        for on_host in (
            y.cpu(),
            y.to("cpu", non_blocking=True),
            torch.from_numpy(y.numpy(force=True)),
        ):
            on_host.numpy()[:] = 7.0
        assert torch.equal(y, x @ w) and not (y == 7.0).any()


def test_what_is_shared_already_is_parted_by_whoever_asks_for_its_address() -> None:
    kept = torch.randn(4, 4)
    then = kept.clone()
    shared = copied_when_written(kept)
    np.asarray(shared)[0, 0] = 7.0
    assert torch.equal(kept, then) and shared[0, 0] == 7.0
    shared.add_(1)
    assert torch.equal(kept, then)


def test_the_memory_of_numpy_itself_is_copied_at_once() -> None:
    """A write through NumPy parts nothing: what is to stay as it was has to be a copy by then."""
    array = np.zeros(4, dtype=np.float32)
    then = copied_when_written(torch.from_numpy(array))
    array[0] = 7.0
    assert then.tolist() == [0.0] * 4


def test_nobody_outside_gets_the_device_s_memory() -> None:
    x = torch.ones(4).cuda()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        x.numpy()
    for hand_out in (np.from_dlpack, torch.utils.dlpack.to_dlpack):
        with pytest.raises(EmulationLimit, match="DLPack"):
            hand_out(x)


def test_torch_takes_the_device_s_tensors_from_itself() -> None:
    x = torch.ones(4).cuda()
    same = torch.from_dlpack(x)
    same.mul_(3)
    assert same.is_cuda and x.tolist() == [3.0] * 4
    other = torch.from_dlpack(x, copy=True)
    other.zero_()
    assert other.is_cuda and x.tolist() == [3.0] * 4
    assert x.__dlpack_device__() == (2, 0) and torch.from_dlpack(torch.ones(2)).is_cpu
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(4, device="cuda", requires_grad=True))
