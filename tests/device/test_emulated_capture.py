"""A capture on the emulated device refuses what a GPU refuses, and leaves everything usable."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphdoctor.device.observe import host_calls
from tests.support.emulated import captured, device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")

Body = Callable[[torch.Tensor], Any]
PERMITTED_NOT = "operation not permitted when stream is capturing"
PINNED_ONLY = "unless the CPU tensor is pinned"  # torch's own words for a copy, from 2.11 on


def scaler_step(x: torch.Tensor) -> None:
    model = nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)


# One of each kind, and what test_capture_facts.py, which has many more, does not ask.
WAITS: dict[str, Body] = {
    "float": lambda x: float(x.sum()),
    "in a list": lambda x: x.sum() in [x.sum()],
    "range": lambda x: range(x.sum().long()),
    "repr": lambda x: repr(x),
    "to cpu": lambda x: x.to("cpu"),
    "save": lambda x: torch.save(x, io.BytesIO()),
    "copy from the host": lambda x: x.copy_(torch.ones(4, 4)),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "scaler step": scaler_step,
    "a capture inside": lambda x: captured(lambda: x + 1),
}


def refusal(body: Callable[[], Any]) -> str:
    """The error that the body met in a capture, after the one that ends the capture."""
    with pytest.raises(RuntimeError) as caught:
        captured(body)
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch itself stays on the capture's
    error: BaseException = caught.value
    if error.__context__ is not None:
        assert "failed due to a previous error during capture" in str(error)
        error = error.__context__
    return str(error)


def assert_usable(x: torch.Tensor) -> None:
    """Nothing is left of a failed capture: another one works."""
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    graph, y = captured(lambda: x + 1)
    graph.replay()
    assert torch.equal(y, x + 1)


@pytest.mark.parametrize("name", WAITS)
def test_what_makes_the_host_wait_is_refused(name: str) -> None:
    x, state = torch.randn(4, 4, device="cuda"), torch.zeros(4, 4, device="cuda")
    generator = torch.get_rng_state()

    def body() -> None:
        state.add_(torch.rand(4, 4, device="cuda"))
        WAITS[name](x)

    assert any(text in refusal(body) for text in (PERMITTED_NOT, PINNED_ONLY))
    assert state.tolist() == torch.zeros(4, 4).tolist()
    assert torch.equal(generator, torch.get_rng_state())
    assert_usable(x)


def seed_in_fork(x: torch.Tensor) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(77)


def state_of_another_seed() -> torch.Tensor:
    other = torch.Generator()
    other.manual_seed(77)
    return other.get_state()


SEEDS: dict[str, Body] = {
    "seed": lambda x: torch.cuda.manual_seed(77),
    "all": lambda x: torch.cuda.manual_seed_all(77),
    "torch": lambda x: torch.manual_seed(77),
    "fork": seed_in_fork,
    "state": lambda x: torch.cuda.set_rng_state(state_of_another_seed()),
    "own": lambda x: torch.Generator(device="cuda").manual_seed(77),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_new_seed_is_refused(name: str) -> None:
    x = torch.randn(4, 4, device="cuda")
    refused = refusal(lambda: SEEDS[name](x))
    # Up to torch 2.6 already the question for the seed is refused, which `fork` begins with.
    told = ("only if new seed is the same", "set_current_seed during", "current_seed during")
    assert any(words in refused for words in told)
    assert_usable(x)


def test_a_seed_from_the_system_is_refused() -> None:
    assert "Cannot call CUDAGeneratorImpl::seed during" in refusal(torch.cuda.seed)


def fork_rng(x: torch.Tensor) -> None:
    with torch.random.fork_rng():
        pass


RNG_STATE: dict[str, Body] = {
    "get": lambda x: torch.cuda.get_rng_state(),
    "put back": lambda x: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    "same seed": lambda x: torch.manual_seed(torch.cuda.initial_seed()),
    "fork": fork_rng,
    "checkpoint": lambda x: checkpoint(torch.sin, x.requires_grad_(), use_reentrant=False),
}


@pytest.mark.parametrize("name", RNG_STATE)
def test_the_state_of_the_same_seed_is_captured_since_2_10(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 4, device="cuda")
    monkeypatch.setattr(host_calls, "torch_version", lambda: (2, 10))
    captured(lambda: (RNG_STATE[name](x), x + 1))
    monkeypatch.setattr(host_calls, "torch_version", lambda: (2, 9))
    assert "during CUDA graph capture" in refusal(lambda: RNG_STATE[name](x))
    assert_usable(x)


@pytest.mark.parametrize("way", ["to the device", "to the host"])
def test_pageable_memory_is_copied_unblocked_only_before_2_11(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, host = torch.ones(3, device="cuda"), torch.ones(3)

    def body() -> None:
        into, source = (x, host) if way == "to the device" else (host, x)
        into.copy_(source, non_blocking=True)

    monkeypatch.setattr(host_calls, "torch_version", lambda: (2, 11))
    assert PINNED_ONLY in refusal(body)
    monkeypatch.setattr(host_calls, "torch_version", lambda: (2, 10))
    captured(body)


@pytest.mark.parametrize("way", ["to the device", "to the host"])
def test_pinned_memory_is_copied_unblocked_only(way: str) -> None:
    x, host = torch.ones(3, device="cuda"), torch.ones(3).pin_memory()
    into, source = (x, host) if way == "to the device" else (host, x)
    captured(lambda: into.copy_(source, non_blocking=True))
    assert PERMITTED_NOT in refusal(lambda: into.copy_(source))


def test_an_unblocked_copy_to_the_host_is_written_by_every_replay() -> None:
    x = torch.ones(3, device="cuda")
    graph, host = captured(lambda: (x + 1).to("cpu", non_blocking=True))
    x.fill_(4)
    graph.replay()
    assert host.is_pinned()
    assert host.tolist() == [5, 5, 5]


def test_pinned_memory_may_be_allocated() -> None:
    x = torch.ones(3, device="cuda")
    captured(lambda: (x + 1, torch.ones(2).pin_memory(), torch.empty(2, pin_memory=True)))


def test_a_generator_must_be_registered_first() -> None:
    generator = torch.Generator(device="cuda")

    def draw() -> torch.Tensor:
        return torch.rand(10, device="cuda", generator=generator)

    assert "Attempt to increase offset for a CUDA generator" in refusal(draw)
    graph: Any = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        y = draw()
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adadelta"])
def test_optimizers_that_are_not_capturable_are_refused(name: str) -> None:
    model = nn.Linear(4, 4, device="cuda")
    optimizer = getattr(torch.optim, name)(model.parameters())
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert f"for an instance of {name} but param_groups' capturable is False" in refusal(
        optimizer.step
    )


def test_the_default_stream_cannot_capture() -> None:
    graph: Any = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_side_stream_must_join_again() -> None:
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()

    def body() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    assert "unjoined work" in refusal(body)
    assert x.tolist() == [1, 1, 1]
    assert_usable(x)


@pytest.mark.parametrize("by_event", [False, True])
def test_waiting_for_work_from_before_is_refused(by_event: bool) -> None:
    x, before, event = torch.ones(3, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(before):
        event.record()

    def body() -> None:
        current = torch.cuda.current_stream()
        current.wait_event(event) if by_event else current.wait_stream(before)

    assert "uncaptured work in another stream" in refusal(body)
    assert_usable(x)


def joined(x: torch.Tensor) -> torch.Tensor:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
        y.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    return y * 2


def joined_by_events(x: torch.Tensor) -> torch.Tensor:
    side, begin, end = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    begin.record()
    side.wait_event(begin)
    with torch.cuda.stream(side):
        y = x + 1
        end.record(side)
    end.wait()
    return y * 2


def joined_in_a_chain(x: torch.Tensor) -> torch.Tensor:
    first, second, current = (*(torch.cuda.Stream() for _ in "ab"), torch.cuda.current_stream())
    first.wait_stream(current)
    with torch.cuda.stream(first):
        y = x + 1
    second.wait_stream(first)
    with torch.cuda.stream(second):
        y = y * 2
    current.wait_stream(second)
    return y


def joined_four(x: torch.Tensor) -> torch.Tensor:
    sides, current = [torch.cuda.Stream() for _ in range(4)], torch.cuda.current_stream()
    parts = []
    for side in sides:
        side.wait_stream(current)
        with torch.cuda.stream(side):
            parts.append(x + 1)
    for side in sides:
        current.wait_stream(side)
    return parts[0] + parts[3]


@pytest.mark.parametrize("fork", [joined, joined_by_events, joined_in_a_chain, joined_four])
def test_streams_that_fork_and_join_are_captured(fork: Body) -> None:
    x = torch.ones(3, device="cuda")
    graph, y = captured(lambda: fork(x))
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def external_event(x: torch.Tensor) -> None:
    event = torch.cuda.Event(external=True)
    event.record()
    torch.cuda.current_stream().wait_event(event)


def fill_by_mask(x: torch.Tensor) -> None:
    x[x > 0] = 0.0


SAFE: dict[str, Body] = {
    "masked fill": lambda x: x.masked_fill(x > 0, 1.0),
    "fill by mask": fill_by_mask,
    "where": lambda x: torch.where(x > 0, x, 0),
    "asynchronous to host": lambda x: x.to("cpu", non_blocking=True),
    "asynchronous to device": lambda x: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
    "empty copy": lambda x: torch.empty(0).cuda(),
    "empty from data": lambda x: torch.tensor([], device="cuda"),
    "empty host tensor": lambda x: (torch.tensor([]), x + 1),
    "empty slice": lambda x: x[0:0].fill_(3),
    "resized": lambda x: x.clone().resize_(20).fill_(2),
    "filled on the device": lambda x: torch.full((2,), 1.0, device="cuda"),
    "host work": lambda x: torch.ones(2) + 1,
    "host scalar": lambda x: x * torch.tensor(3.0),
    "capture query": lambda x: torch.cuda.is_current_stream_capturing(),
    "known repeats": lambda x: x.repeat_interleave(2),
    "empty cache": lambda x: torch.cuda.empty_cache(),
    "external event": external_event,
    "fixed nonzero": lambda x: torch.nonzero_static(x, size=16),
    "checkpoint": lambda x: checkpoint(
        torch.sin, x.clone().requires_grad_(), use_reentrant=False, preserve_rng_state=False
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_does_not_wait_is_captured(name: str) -> None:
    x = torch.randn(4, 4, device="cuda")
    graph, _ = captured(lambda: SAFE[name](x))
    graph.replay()


def test_code_sees_that_it_is_captured() -> None:
    _, answer = captured(lambda: (torch.ones(1, device="cuda"), _capturing())[1])
    assert answer == (True, True) and _capturing() == (False, False)


def _capturing() -> tuple[bool, bool]:
    return torch.cuda.is_current_stream_capturing(), torch.cuda.current_stream().is_capturing()


def test_an_empty_graph_is_warned_about() -> None:
    """Work on a stream that did not fork from the capture is not captured."""
    x = torch.zeros(2, device="cuda")

    def elsewhere() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)

    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph, _ = captured(elsewhere)
    graph.replay()


def test_an_error_of_the_body_ends_the_capture() -> None:
    x = torch.zeros(2, device="cuda")

    def body() -> None:
        x.add_(1)
        raise ValueError("of the model")

    with pytest.raises(ValueError, match="of the model"):
        captured(body)
    assert x.tolist() == [0, 0]
    assert_usable(x)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_another_thread_disturbs_only_a_global_capture(mode: str) -> None:
    x, errors = torch.ones(2, device="cuda"), []

    def wait() -> None:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            errors.append(error)

    def body() -> torch.Tensor:
        other = threading.Thread(target=wait)
        other.start()
        other.join()
        return x + 1

    if mode == "global":
        with pytest.raises(RuntimeError, match="previous error during capture"):
            captured(body, capture_error_mode=mode)
        torch.cuda.set_stream(torch.cuda.default_stream())
        assert PERMITTED_NOT in str(errors[0])
    else:
        captured(body, capture_error_mode=mode)
        assert not errors
    assert_usable(x)


@pytest.mark.parametrize("by", ["reset", "del", "collector"])
def test_an_earlier_graph_that_is_destroyed_in_a_capture_ends_it(by: str) -> None:
    """CUDA does so (pytorch#161037). Python's collector destroys none: it runs after the capture."""
    x = torch.ones(4, device="cuda")
    graphs = [captured(lambda: x + 1)[0]]

    def body() -> None:
        x.mul_(2)
        if by == "reset":
            graphs[0].reset()
        elif by == "del":
            graphs.clear()
        else:
            cycle: list[Any] = [graphs.pop()]
            cycle.append(cycle)
            del cycle
            [[] for _ in range(100_000)]  # the collector would run

    if by == "collector":
        captured(body)[0].replay()
        assert x[0] == 2
    else:
        with pytest.raises(RuntimeError, match="previous error during capture"):
            captured(body)
        captured(lambda: x.mul_(3))[0].replay()
        assert x[0] == 3
