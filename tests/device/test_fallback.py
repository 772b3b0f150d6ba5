"""Operators that the CPU cannot run as a GPU does, and what runs instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdoctor.device.observe.fallback import run_operator
from graphdoctor.device.observe.operators import Call, facts_of
from graphdoctor.target.state.saved_tensor import copied_when_written

LENGTHS = [12, 12], [4, 4]


def called(func: Any, *args: Any) -> Any:
    return run_operator(Call(func, facts_of(func), args, {}))


def ctc() -> tuple[torch.Tensor, ...]:
    """What the backward of this loss gets; the loss comes fourth."""
    torch.manual_seed(0)
    scores, labels = torch.randn(12, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 4))
    loss, alpha = torch.ops.aten._ctc_loss.default(scores, labels, *LENGTHS, 0, False)
    return torch.ones(2), scores, labels, loss, alpha


def backward(given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    func = torch.ops.aten._ctc_loss_backward.default
    found: torch.Tensor = called(func, *given[:3], *LENGTHS, *given[3:], 0, False)
    return found


@pytest.mark.parametrize("place", range(5))
def test_a_kernel_that_reaches_for_shared_memory_among_its_threads_gets_it_as_its_own(
    place: int,
) -> None:
    given = ctc()
    shared = list(given)
    shared[place] = copied_when_written(given[place])

    assert torch.equal(backward(tuple(shared)), backward(ctc()))
    assert all(map(torch.equal, given, ctc()))  # who shared the memory sees no change


def test_what_fails_otherwise_is_not_run_again() -> None:
    with pytest.raises(RuntimeError, match=r"must have|inconsistent"):
        called(torch.ops.aten.dot.default, torch.ones(2), torch.ones(3))
