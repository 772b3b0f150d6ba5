"""Batches on the CPU that a captured step gets: copied from pinned memory, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.calls.tally import WARMUP_CALLS
from graphdoctor.graphs.graphed_callable import copy_into

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_CALLS = 9


class Copies:
    """What the host does: which buffers it fills, what it sends to the GPU, and which events it waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, int]] = []
        copy, log = torch.Tensor.copy_, self.log

        def note(kind: str, what: int) -> None:
            if log[-1:] != [(kind, what)]:  # the emulated device calls each function twice
                log.append((kind, what))

        def copy_(
            into: torch.Tensor, values: torch.Tensor, non_blocking: bool = False
        ) -> torch.Tensor:
            if into.is_cuda and not values.is_cuda:
                is_async = non_blocking and values.is_pinned()
                note("send" if is_async else "wait for copy", values.data_ptr())
            elif into.is_pinned():
                note("fill", into.data_ptr())
            return copy(into, values, non_blocking)

        class Event:
            def record(self) -> None:
                note("record", id(self))

            def synchronize(self) -> None:
                note("wait", id(self))

        monkeypatch.setattr(torch.Tensor, "copy_", copy_)
        monkeypatch.setattr(torch.cuda, "Event", Event)

    def of(self, kind: str) -> list[int]:
        return [each for found, each in self.log if found == kind]


def _steps(*, non_blocking: bool) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to("cuda"), y.to("cuda")
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def train_step_unblocked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)
        return train_step(x, y)

    return model, train_step_unblocked if non_blocking else train_step


def _batch(number: int, *, pins: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(6, 4, generator=generator).t()
    y = torch.randint(3, (4,), generator=generator)
    return (x.pin_memory(), y.pin_memory()) if pins else (x, y)


@pytest.mark.parametrize(
    ("pins", "non_blocking", "fills"),
    [
        pytest.param(False, False, True, id="pageable"),
        pytest.param(False, True, True, id="pageable-non_blocking"),
        # After a blocking copy the program may write to its tensor: the GPU may not have read it by then.
        pytest.param(True, False, True, id="pinned"),
        pytest.param(True, True, False, id="pinned-non_blocking"),
    ],
)
def test_replays_take_batches_of_the_cpu_from_pinned_memory_without_waiting(
    pins: bool, non_blocking: bool, fills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedDevice():
        model, step = _steps(non_blocking=non_blocking)
        expected = [step(*_batch(number, pins=pins)) for number in range(_CALLS)]
        trained, step = _steps(non_blocking=non_blocking)
        captured: Any = graphdoctor.capture(step)
        found = [captured(*_batch(number, pins=pins)) for number in range(WARMUP_CALLS + 1)]
        copies = Copies(monkeypatch)
        captured._forget()  # the graph is made again, with the copies observed
        found += [
            captured(*_batch(number, pins=pins)) for number in range(WARMUP_CALLS + 1, _CALLS)
        ]
    assert captured.replayed == _CALLS - WARMUP_CALLS, captured.explain()
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
    for weight, other in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.equal(weight, other)
    replays = _CALLS - WARMUP_CALLS - 1
    assert len(copies.of("send")) == 2 * replays
    assert len(set(copies.of("fill"))) == (4 if fills else 0)


def test_a_buffer_is_filled_again_only_after_the_copy_from_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EmulatedDevice():
        copies = Copies(monkeypatch)
        static = [torch.zeros(4).cuda(), torch.zeros(2, dtype=torch.int64).cuda()]
        load = copy_into(static, [0, 1])
        for number in range(7):
            x, y = torch.full((4,), float(number)), torch.full((2,), number)
            load([x, y])
            assert static[0].tolist() == x.tolist() and static[1].tolist() == y.tolist()
    assert not copies.of("wait for copy")
    assert len(copies.of("send")) == 14 and len(set(copies.of("send"))) == 4
    pending: set[int] = set()  # buffers that the GPU may still read
    by_event: dict[int, set[int]] = {}
    for kind, each in copies.log:
        if kind == "send":
            pending.add(each)
        elif kind == "record":
            by_event[each] = pending - {b for e, s in by_event.items() if e != each for b in s}
        elif kind == "wait":
            pending -= by_event.pop(each, set())
        else:
            assert each not in pending


def test_values_of_both_devices_are_loaded_together() -> None:
    with EmulatedDevice():
        static = [torch.zeros(4).cuda(), torch.zeros(4).cuda(), torch.zeros(4).cuda()]
        copy_into(static, [1])([torch.ones(4).cuda(), torch.full((4,), 2.0), torch.ones(4).cuda()])
        assert [each.tolist() for each in static] == [[1.0] * 4, [2.0] * 4, [1.0] * 4]


@pytest.mark.gpu
@pytest.mark.parametrize("pins", [False, True])
def test_a_batch_may_be_written_to_after_the_call_while_the_gpu_is_behind(pins: bool) -> None:
    """As after a copy that blocks: one tensor has each batch, and the GPU works for longer than the host."""
    total, one = torch.zeros(4, device="cuda"), torch.eye(2048, device="cuda")

    @graphdoctor.capture
    def add(x: torch.Tensor) -> torch.Tensor:
        product = one
        for _ in range(20):
            product = product @ one
        total.add_(x.to("cuda") * product[0, 0])
        return total * 1

    buffer = torch.empty(4, pin_memory=pins)
    found = []
    for number in range(40):
        buffer.fill_(float(number))
        found.append(add(buffer))
    assert add.replayed >= 30, add.explain()
    assert [each.tolist()[0] for each in found] == [sum(range(n + 1)) for n in range(40)]
