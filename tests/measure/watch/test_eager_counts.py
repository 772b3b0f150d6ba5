"""What the allocator counts is added up over devices and resets; waits are counted by their names."""

from __future__ import annotations

import pytest
import torch

from graphdoctor.measure.watch.watcher import AllocatorCounts, WaitCounts
from graphdoctor.values.watched import WatchedAllocator


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")


def test_counts_of_all_devices_are_added_up_and_a_reset_takes_nothing_away(
    native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {0: {"allocation.all.allocated": 100, "num_device_alloc": 3}, 1: {"num_alloc_retries": 1}}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda number: of[number])
    counts = AllocatorCounts()
    assert counts.read() == WatchedAllocator(100, 3, 1)
    of[0]["allocation.all.allocated"] = 7  # torch.cuda.reset_accumulated_memory_stats()
    assert counts.read() == counts.read() == WatchedAllocator(107, 3, 1)


def test_no_device_is_left_out_however_many_there_are(
    native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = {"allocation.all.allocated": 5, "num_device_alloc": 2, "num_alloc_retries": 1}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 40)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda number: stats)
    assert AllocatorCounts().read() == WatchedAllocator(200, 80, 40)


@pytest.mark.parametrize("backend", ["pluggable", "cudaMallocAsync"])
def test_what_another_allocator_does_is_not_known_and_ends_nothing(
    backend: str, native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(number: int) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_stats", refuses)
    assert AllocatorCounts().read() is None


def test_cuda_is_not_started_to_ask() -> None:
    assert AllocatorCounts().read() == WatchedAllocator()
    assert not torch.cuda.is_initialized()


def test_waits_are_counted_by_name_and_the_methods_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stream:
        def synchronize(self) -> str:
            return "waited"

    class Event(Stream):
        pass

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: device)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    before = dict(vars(Stream)), dict(vars(Event)), torch.cuda.synchronize
    waits = WaitCounts()
    with waits.on():
        assert torch.cuda.synchronize(device=1) == 1
        assert [Stream().synchronize() for _ in range(3)] == ["waited"] * 3
    assert waits.read() == {"Stream.synchronize()": 3, "torch.cuda.synchronize()": 1}
    assert (dict(vars(Stream)), dict(vars(Event)), torch.cuda.synchronize) == before
    Event().synchronize()
    assert len(waits.read()) == 2
