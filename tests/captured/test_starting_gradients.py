"""What an eager call did with the gradients that it found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphdoctor.captured.step_gradients import StartingGradients


def _leave(weight: torch.Tensor) -> None:
    weight.detach() + 1.0


def _replace(weight: torch.Tensor) -> None:
    weight.grad = None
    weight.sum().backward()


def _add(weight: torch.Tensor) -> None:
    weight.sum().backward()


@pytest.mark.parametrize(
    ("call", "has_run"),
    [(_leave, False), (_replace, True), (_add, True)],
    ids=["left", "replaced", "added"],
)
def test_a_call_that_leaves_gradients_alone_has_run_no_backward(
    call: Callable[[torch.Tensor], None], has_run: bool
) -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    with StartingGradients([weight]).observed("call") as observed:
        call(weight)
    assert observed.has_run_backward == has_run
