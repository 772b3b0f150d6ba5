"""A call with a new tensor that nothing copies into the captured one is reported with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.values.locations import Location
from tests.measure.audit.healthy_graphs import batch, model
from tests.support.emulated import captured

pytestmark = pytest.mark.usefixtures("on_device")


class FirstCall:
    """Captures in its first call, with the tensor that the call got."""

    def __init__(self) -> None:
        self.net, self.graph, self.out = model(), None, batch()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.graph is None:
            self.graph, self.out = captured(lambda: self.net(x))
        self.graph.replay()  # <- replayed
        return self.out


class Engine:
    """Decodes from a buffer for tokens, which `step` forgets to fill."""

    def __init__(self) -> None:
        self.net, self.tokens = model(), batch()
        self.graph, self.logits = captured(lambda: self.net(self.tokens))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.shape == self.tokens.shape
        self.graph.replay()  # <- replayed
        return self.logits


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mask = model(), batch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.mask


def runner(example: torch.Tensor) -> Callable[..., torch.Tensor]:
    graph, out = captured(lambda: example * 2)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        graph.replay()  # <- replayed
        return out

    return run


def called_again_with_a_new_tensor() -> None:
    step = FirstCall()
    for x in [batch(1.0), batch(2.0), batch(3.0)]:
        step(x)  # <- passed


def engine_that_does_not_copy() -> None:
    engine = Engine()
    for value in range(3):
        engine.step(batch(float(value)))  # <- passed


def wrapper_that_drops_its_inputs() -> None:
    example = batch(1.0)
    run = runner(example)
    run(example)
    run(batch(2.0))  # <- passed


def mask_of_a_graphed_callable() -> None:
    net = Masked()
    call: Any = torch.cuda.make_graphed_callables(net, (batch(),))
    masks = [net.mask, batch(0.0)]
    call(batch())
    net.mask = masks[1]  # <- changed
    call(batch())  # <- replayed


def variable_of_the_loop() -> None:
    batches = [batch(float(value)) for value in range(3)]
    x = batches[0]
    graph, _ = captured(lambda: x * 2)
    for x in batches:  # noqa: B007
        graph.replay()  # <- replayed


FAULTS = {
    called_again_with_a_new_tensor: ("x", ""),
    engine_that_does_not_copy: ("self.tokens", "tokens"),
    wrapper_that_drops_its_inputs: ("example", "inputs"),
    mask_of_a_graphed_callable: ("self.mask", ""),
    variable_of_the_loop: ("x", ""),
}


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__name__)
def test_a_new_tensor_that_no_replay_reads_is_reported_once(program: Callable[[], None]) -> None:
    with graphdoctor.audit() as audit:
        program()
    report = audit.report()
    (found,) = report.uncopied_inputs
    assert (found.name, found.argument) == FAULTS[program]
    assert (found.shape, found.dtype) == ((2, 4), "float32")
    assert text_of(found.replayed_at).endswith("# <- replayed") or found.name == "self.mask"
    if found.passed_at is not None:
        assert text_of(found.passed_at).endswith("# <- passed")
    is_argument = program.__name__ in (
        "called_again_with_a_new_tensor", "engine_that_does_not_copy", "wrapper_that_drops_its_inputs",
    )  # fmt: skip
    assert (found.passed_at is not None) is is_argument
    if found.name == "self.mask":
        assert text_of(found.changed_at).endswith("# <- changed")
    assert not (report.stale_tensors or report.overwritten_outputs or report.frozen_values)


def text_of(place: Location | None) -> str:
    assert place is not None
    return Path(__file__).read_text().splitlines()[place.line - 1]
