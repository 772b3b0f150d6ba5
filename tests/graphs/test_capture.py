"""One way to record a graph: whatever ends a capture, the device, its generator and the state stay usable."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.capture import (
    Capture,
    Pool,
    Recorded,
    device_usable_after_failure,
    record_graph,
    run_on,
)
from graphdoctor.graphs.cause import Refusal, refusal_of
from graphdoctor.graphs.generator import generator_state
from graphdoctor.graphs.modules import graph_modules
from graphdoctor.graphs.segments.graph import CapturedPart
from graphdoctor.graphs.split.breakable import BreakableCapture, PythonChanges
from graphdoctor.graphs.whole_step import capture_whole_step
from graphdoctor.proof.regions import _graph_of
from graphdoctor.strategies.split_step import SplitStep
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target import Inputs, Target
from graphdoctor.values.errors import UsageError
from tests.support.trying import tried


class Surroundings:
    """What a failed capture must leave as it found it."""

    def __init__(self) -> None:
        self.state = torch.arange(4.0, device="cuda")
        self._before = self.state.clone()
        self._stream = torch.cuda.current_stream()
        self._drawn = generator_state()

    def write(self) -> torch.Tensor:
        """Change the state and the generator, as a captured step does."""
        self.state.add_(torch.rand(4, device="cuda"))
        return self.state * 2

    def check(self) -> None:
        """All is as before, and a graph can be made and replayed at once, in the same way."""
        assert torch.cuda.current_stream() == self._stream
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.equal(self.state, self._before)
        assert torch.equal(generator_state(), self._drawn)
        made = record_graph(lambda: self.state + 1, torch.cuda.Stream())
        assert isinstance(made, Recorded)
        made.graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(made.result, self._before + 1)
        made.graph.reset()
        torch.rand(4, device="cuda")  # a generator left in capture mode refuses


def reads(found: Surroundings) -> object:
    return found.write().sum().item()


def hides(found: Surroundings) -> object:
    try:
        return reads(found)
    except RuntimeError:
        return found.write()


def fails(found: Surroundings) -> object:
    raise KeyError(f"after {found.write().shape}")


def forks(found: Surroundings) -> object:
    other: Any = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        return found.write()


def strays(found: Surroundings) -> object:
    """Leaves the stream of the capture for good, so that it cannot be ended there."""
    found.write()
    torch.cuda.set_stream(torch.cuda.Stream())
    raise KeyError("on another stream")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (reads, "the host waited for the device"),
        (hides, "already spoilt the recording"),
        (fails, "KeyError: 'after torch.Size([4])'"),
        (forks, "work on another stream was not joined back"),
        (strays, ""),
    ],
)
def test_whatever_ends_a_capture_is_told_and_repaired(
    exact: bool, work: Callable[[Surroundings], object], said: str
) -> None:
    found = Surroundings()
    made = record_graph(lambda: work(found), torch.cuda.Stream())
    assert isinstance(made, Refusal)
    assert said in made.reason or (not exact and "CUDA forbids" in made.reason)
    if work in (reads, fails):
        assert made.location is not None and made.location.file == __file__
        assert made.location.function == work.__name__
    found.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt, UsageError("not a refusal")])
def test_what_is_no_refusal_is_raised_and_repaired(exact: bool, error: Any) -> None:
    found = Surroundings()

    def work() -> None:
        found.write()
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        record_graph(work, torch.cuda.Stream())
    found.check()


def test_a_warm_up_that_fails_is_a_refusal_too(exact: bool) -> None:
    found = Surroundings()

    def warm_up() -> None:
        raise ValueError("no kernel for this")

    made = record_graph(found.write, torch.cuda.Stream(), warm_up=warm_up)
    assert isinstance(made, Refusal) and made.reason == "ValueError: no kernel for this"
    found.check()


def test_a_pool_serves_the_next_graph_after_a_failure_in_it(exact: bool) -> None:
    found, side, pool = Surroundings(), torch.cuda.Stream(), Pool()
    first = record_graph(lambda: found.state * 3, side, pool=pool)
    assert isinstance(record_graph(lambda: reads(found), side, pool=pool), Refusal)
    second = record_graph(lambda: found.state * 5, side, pool=pool)
    assert isinstance(first, Recorded) and isinstance(second, Recorded)
    for made, factor in ((first, 3), (second, 5), (first, 3)):
        made.graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(made.result, found.state * factor)
    found.check()


def test_a_graph_without_a_kernel_is_empty_and_says_so_to_nobody_else(exact: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = record_graph(lambda: 7, torch.cuda.Stream())
    assert isinstance(made, Recorded)
    assert (made.result, made.is_empty) == (7, True)


def test_other_warnings_of_a_capture_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmulatedDevice():
        capture = Capture(torch.cuda.Stream())
        end = capture.graph.capture_end

        def warning() -> None:
            warnings.warn("something else", stacklevel=1)
            end()

        monkeypatch.setattr(capture.graph, "capture_end", warning)
        capture.begin()
        with pytest.warns(UserWarning, match="something else") as said:
            assert capture.end()
    assert len(said) == 1


def test_work_on_a_stream_that_fails_says_what_failed(exact: bool) -> None:
    def work() -> None:
        raise ZeroDivisionError

    before = torch.cuda.current_stream()
    with pytest.raises(ZeroDivisionError):
        run_on(torch.cuda.Stream(), work)
    assert torch.cuda.current_stream() == before


def test_a_refusal_is_made_of_the_first_cause() -> None:
    try:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    except RuntimeError as error:
        refused = refusal_of(error)
    outcome = refused.outcome("region R1")
    assert (outcome.scope, outcome.status, outcome.reason) == (
        "region R1",
        "refused",
        refused.reason,
    )
    assert outcome.location is not None and outcome.location.file == __file__


# Each kind of graph, ended by the same forbidden call.


def by_whole_step(found: Surroundings) -> str:
    def step() -> object:
        return reads(found) if torch.cuda.is_current_stream_capturing() else found.state * 2

    target = Target(
        name="step",
        file=__file__,
        entry="test",
        mode="inference",
        step=step,
        fresh_inputs=Inputs,
        roots={"state": found.state},
    )
    made = capture_whole_step(target, warmup=1)
    assert isinstance(made, Refusal)
    return made.reason


def by_region(found: Surroundings) -> str:
    tape: Any = SimpleNamespace(replay=lambda: reads_when_captured(found))
    made = _graph_of(tape, lambda: None)
    assert isinstance(made, Refusal)
    return made.reason


def reads_when_captured(found: Surroundings) -> object:
    """A warm-up changes nothing here: whoever asks for it puts the state back."""
    return reads(found) if torch.cuda.is_current_stream_capturing() else found.state * 2


class Reading(nn.Module):
    def __init__(self, found: Surroundings) -> None:
        super().__init__()
        object.__setattr__(self, "found", found)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        reads_when_captured(self.found)  # type: ignore[arg-type]
        return data * 2


def by_segment(found: Surroundings) -> str:
    graph = torch.fx.symbolic_trace(nn.Identity())
    graph.forward = Reading(found).forward
    part = CapturedPart(graph, Pool(), torch.cuda.Stream(), lambda _: False)
    data = torch.ones(3, device="cuda")
    assert torch.equal(part(data), data * 2)  # eagerly
    assert not part.is_captured
    return part.refused


def by_split(found: Surroundings) -> str:
    side: Any = torch.cuda.Stream()
    capture = BreakableCapture(side, PythonChanges({}), ())
    with pytest.raises(RuntimeError) as error, device_usable_after_failure(capture):
        capture.begin()
        reads(found)
    assert capture.graphs == []
    return refusal_of(error.value).reason


def by_module(found: Surroundings) -> str:
    model, data = Reading(found), torch.ones(3, device="cuda")
    made = graph_modules({"model": model}, lambda: model(data), restore=lambda: None)
    assert made.paths == ()
    return made.left_out["model"]


@pytest.mark.parametrize("kind", [by_whole_step, by_region, by_segment, by_split, by_module])
def test_no_kind_of_graph_leaves_half_a_capture_behind(
    exact: bool, kind: Callable[[Surroundings], str]
) -> None:
    found = Surroundings()
    assert "the host waited for the device" in kind(found)
    found.check()


def test_a_split_step_that_fails_in_its_second_graph_gives_the_first_one_back() -> None:
    def target() -> object:
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(data: torch.Tensor) -> object:
            optimizer.zero_grad()
            (weight * data).sum().backward()
            optimizer.step()
            return reads_after(weight)

        state = {"weight": weight, "optimizer": optimizer}
        return SimpleNamespace(step=step, inputs=(torch.ones(4, device="cuda"),), state=state)

    def reads_after(weight: torch.Tensor) -> object:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return weight.detach() * 2

    with tried(target) as attempt:
        found = Surroundings()
        with pytest.raises(CannotBuild):
            SplitStep().build(attempt.session, attempt.known)
        found.check()
