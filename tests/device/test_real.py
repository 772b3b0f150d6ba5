"""A device that is only watched shows the operators that the emulated one shows."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.operators import Call
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


@pytest.mark.parametrize("observing", [emulated, watched])
def test_a_whole_operator_of_inference_mode_is_seen_as_its_parts(observing) -> None:
    """torch.inference_mode() hands on operators whole that autograd takes apart."""
    with torch.inference_mode():
        x, weight = torch.ones(2, 3), torch.ones(4, 3)
        whole, parts = Seen(), Seen()
        with observing(whole):
            torch.nn.functional.linear(x, weight)
    with observing(parts):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
    assert "linear" not in whole.calls
    assert whole.calls[-2:] == parts.calls[-2:] == ["t", "mm"]


@pytest.mark.parametrize("observing", [emulated, watched])
def test_names_in_a_profile_are_no_operators(observing) -> None:
    seen = Seen()
    with observing(seen), torch.profiler.record_function("a name"):
        torch.ones(2)
    assert seen.calls == ["ones"]


class Placed(Seen):
    """Notes for each operator whether it ran on the device, and for its inputs whether they are pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cuda: dict[str, bool] = {}
        self.pinned: dict[str, list[bool]] = {}

    def after(self, call: Call) -> None:
        super().after(call)
        self.on_cuda[call.facts.base_name] = call.on_cuda
        self.pinned[call.facts.base_name] = [info.pinned for info in call.infos]


@pytest.mark.gpu
def test_a_real_device_tells_where_operators_run_and_what_the_host_asks() -> None:
    seen = Placed()
    source, double = (
        torch.ones(3).pin_memory(),
        TwoTensor(torch.ones(3).cuda(), torch.ones(3).cuda()),
    )
    with watched(seen):
        moved = source.to("cuda", non_blocking=True)
        double * 2
        moved.sum().cpu()
        torch.arange(3)
        torch.cuda.synchronize()
        torch.cuda.Event().query()
        torch.cuda.is_current_stream_capturing()
    assert seen.calls.count("mul") == 2
    assert {name: seen.on_cuda[name] for name in ("_to_copy", "mul", "sum", "arange")} == {
        "_to_copy": True, "mul": True, "sum": True, "arange": False,
    }  # fmt: skip
    assert [kind for kind, _ in seen.events] == ["sync", "query", "capture-query"]


@pytest.mark.gpu
def test_a_real_device_knows_pinned_memory() -> None:
    seen = Placed()
    with watched(seen):
        torch.ones(3).pin_memory().mul_(2)
    assert (
        seen.pinned["mul_"] == [True]
        and ("pinned-allocation", "Tensor.pin_memory()") in seen.events
    )


def test_the_pool_for_eager_runs_lives_as_long_as_the_process() -> None:
    """At the end of a process, torch 2.11 aborts where a pool is destroyed after a capture has failed."""
    program = """
import contextlib, os, torch
from graphdoctor.device import real

class Pool:
    def __del__(self, end=os._exit):
        end(134)

torch.cuda.MemPool, torch.cuda.use_mem_pool = Pool, lambda pool: contextlib.nullcontext(pool)
torch.empty = lambda *args, **kwargs: None
torch.cuda.get_allocator_backend = lambda: "native"
with real.own_memory() as pool:
    assert isinstance(pool, Pool)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
