"""`graphdoctor.no_sync()` fails on what makes the host wait, in its own thread, and on nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose import no_sync as module
from graphdoctor.values.errors import CannotDoItHere, HostWaited, UsageError


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    with EmulatedDevice():
        yield torch.ones(4, 8, device="cuda")


WAITING: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("GD101", lambda x: x.sum().item()),
    ("GD101", lambda x: x.tolist()),
    ("GD103", lambda x: x.cpu()),
    ("GD103", lambda x: torch.empty(4, 8).copy_(x)),
    ("GD104", lambda x: x + torch.arange(8).to(x.device)),
    ("GD104", lambda x: x[torch.tensor([0, 2])]),
    ("GD105", lambda x: torch.tensor([1.0, 2.0], device="cuda")),
    ("GD106", lambda x: x.nonzero()),
    ("GD108", lambda x: torch.cuda.synchronize()),
    ("GD108", lambda x: torch.cuda.current_stream().synchronize()),
    ("GD102", lambda x: str(x)),
    ("GD114", lambda x: torch.linalg.inv(x @ x.T + torch.eye(4, device="cuda"))),
]
FREE: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch.relu(x @ x.T),
    lambda x: torch.arange(8).pin_memory().to("cuda", non_blocking=True),
    lambda x: torch.where(x > 0, x, 0).sum(),
    lambda x: torch.ones(3).sum().item(),  # of the host's own
    lambda x: x.clone().requires_grad_().sum().backward(),
]


@pytest.mark.parametrize(("rule", "step"), WAITING)
def test_what_waits_is_named_with_its_rule(rule: str, step, x: torch.Tensor) -> None:
    with (
        pytest.raises(HostWaited, match=rf"test_no_sync\.py:\d+: {rule} ") as raised,
        graphdoctor.no_sync(),
    ):
        step(x)
    assert "in 1 place\n" in str(raised.value)


@pytest.mark.parametrize("step", FREE)
def test_what_does_not_wait_passes(step, x: torch.Tensor) -> None:
    with graphdoctor.no_sync():
        step(x)


def test_all_places_are_named_at_once_with_code_and_fix(x: torch.Tensor) -> None:
    with pytest.raises(AssertionError) as raised, graphdoctor.no_sync():
        first = x.sum().item()
        torch.cuda.synchronize()
        second = x.max().item()
    text = str(raised.value)
    assert "waits for the GPU in 3 places" in text and "Fix: " in text
    for code in ("first = x.sum().item()", "torch.cuda.synchronize()", "second = x.max().item()"):
        assert f"    {code}\n" in text
    assert first == second * 32


def test_what_is_allowed_passes_by_block_and_by_comment(x: torch.Tensor) -> None:
    with graphdoctor.no_sync():
        with graphdoctor.allowed("GD101", reason="logged once an epoch"):
            x.sum().item()
        x.cpu()  # graphdoctor: ignore[GD103] the result
    with (
        pytest.raises(HostWaited, match="GD103"),
        graphdoctor.no_sync(),
        graphdoctor.allowed("GD101", reason="another rule"),
    ):
        x.cpu()


def test_the_first_passes_may_warm_up_in_each_thread(x: torch.Tensor) -> None:
    guard = graphdoctor.no_sync(warm_up=2)
    failed: list[int] = []

    def passes() -> None:
        for number in range(4):
            try:
                with guard:
                    x.sum().item()
            except HostWaited:
                failed.append(number)

    passes()
    assert failed == [2, 3]
    thread = threading.Thread(target=passes)
    thread.start()
    thread.join()
    assert failed == [2, 3, 2, 3]


def test_a_function_is_guarded_and_may_call_itself(x: torch.Tensor) -> None:
    @graphdoctor.no_sync(warm_up=1)
    def step(depth: int) -> float:
        return step(depth - 1) if depth else x.sum().item()

    assert step(0) == 32
    with pytest.raises(HostWaited):
        step(1)


def test_other_threads_do_not_count(x: torch.Tensor) -> None:
    thread = threading.Thread(target=lambda: x.sum().item())
    with graphdoctor.no_sync():
        thread.start()
        thread.join()


def test_an_error_of_the_block_comes_through(x: torch.Tensor) -> None:
    with pytest.raises(KeyError, match="mine"), graphdoctor.no_sync():
        x.sum().item()
        raise KeyError("mine")


def test_a_backward_pass_is_guarded_too(x: torch.Tensor) -> None:
    weight = x.clone().requires_grad_()
    weight.register_hook(lambda gradient: print(end=str(gradient.sum().item())[:0]))
    with pytest.raises(HostWaited, match="GD101"), graphdoctor.no_sync():
        (weight * 2).sum().backward()


def test_nothing_is_left_behind(x: torch.Tensor) -> None:
    before = torch.cuda.synchronize
    with pytest.raises(HostWaited), graphdoctor.no_sync():
        x.sum().item()
    assert torch.cuda.synchronize is before
    x.sum().item()


def test_without_any_device_it_says_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(CannotDoItHere, match="EmulatedDevice"), graphdoctor.no_sync():
        pass


def test_a_negative_warm_up_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="not -1"):
        graphdoctor.no_sync(warm_up=-1)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda as a machine with a GPU has it, as far as threads go."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_on_a_gpu_other_threads_do_not_count_and_guards_may_overlap(as_on_a_gpu: None) -> None:
    """What is replaced in torch belongs to all threads, and goes with the last guard."""
    original = torch.cuda.synchronize
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    raised: dict[str, bool] = {}

    def first() -> None:
        try:
            with graphdoctor.no_sync():
                first_in.set()
                second_in.wait(10)
        except HostWaited:
            raised["first"] = True
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        try:
            with graphdoctor.no_sync():
                second_in.set()
                first_out.wait(10)
                torch.cuda.synchronize()
        except HostWaited:
            raised["second"] = True

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert raised == {"second": True}
    assert torch.cuda.synchronize is original and module._GPU._observers == ()


@pytest.mark.gpu
def test_on_a_gpu_what_waits_is_named_and_what_does_not_passes() -> None:
    x = torch.ones(4, 8, device="cuda")
    for rule, step in WAITING:
        with pytest.raises(HostWaited, match=rule), graphdoctor.no_sync():
            step(x)
    for free in FREE:
        with graphdoctor.no_sync():
            free(x)
    with pytest.raises(HostWaited, match="GD108"), graphdoctor.no_sync():
        weight = x.clone().requires_grad_()
        weight.register_hook(lambda gradient: torch.cuda.synchronize())
        weight.sum().backward()


def test_the_text_says_how_often_only_where_it_was_more_than_once(x: torch.Tensor) -> None:
    with pytest.raises(HostWaited) as once, graphdoctor.no_sync():
        x.sum().item()
    with pytest.raises(HostWaited) as twice, graphdoctor.no_sync():
        for _ in range(2):
            x.sum().item()
    first, blank, place, code, message, fix, *_ = str(once.value).splitlines()
    assert (first, blank) == ("the host waits for the GPU in 1 place", "")
    assert place.endswith(": GD101 host-read") and code == "    x.sum().item()"
    assert message.startswith("  ") and fix.startswith("  Fix: ")
    assert str(once.value).splitlines()[-2:] == [
        "", 'Where it is wanted: `with graphdoctor.allowed("ID", reason="..."):` around the line.',
    ]  # fmt: skip
    assert str(twice.value).splitlines()[2].endswith(": GD101 host-read (2 times)")


@pytest.mark.parametrize("warm_up", [0, 1])
def test_a_warm_up_of_a_whole_number_is_taken(warm_up: int, x: torch.Tensor) -> None:
    guard = graphdoctor.no_sync(warm_up=warm_up)
    for _ in range(warm_up):
        with guard:
            x.sum().item()
    with pytest.raises(HostWaited), guard:
        x.sum().item()
