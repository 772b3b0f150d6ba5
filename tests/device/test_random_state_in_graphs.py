"""A replay sets the random generator back to where it was in that replay, as kernels of a GPU count from there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.emulated import captured, device
from tests.support.torch_versions import MEASURED_WITH, VERSION

__all__ = ["device"]
pytestmark = [
    pytest.mark.usefixtures("device"),
    pytest.mark.skipif(VERSION < MEASURED_WITH, reason="this torch refuses the state in a capture"),
]


def draw() -> torch.Tensor:
    return torch.rand(8, device="cuda")


def values(tensors: Any) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


def test_what_is_drawn_after_the_state_was_put_back_is_drawn_again() -> None:
    def body() -> tuple[torch.Tensor, ...]:
        state = torch.cuda.get_rng_state()
        first = draw()
        between = draw()
        torch.cuda.set_rng_state(state)
        return first, between, draw()

    graph, drawn = captured(body)
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = values(body())
        torch.manual_seed(seed)
        graph.replay()
        assert values(drawn) == expected
        first, between, again = expected
        assert first == again != between
        seen.append(first)
    assert seen[0] != seen[1]


def test_what_is_drawn_in_a_fork_of_the_generator_leaves_no_trace_in_a_replay() -> None:
    def body() -> tuple[torch.Tensor, ...]:
        with torch.random.fork_rng(devices=[0]):
            inside = draw()
        return inside, draw()

    graph, drawn = captured(body)
    torch.manual_seed(3)
    expected = values(body())
    torch.manual_seed(3)
    graph.replay()
    assert values(drawn) == expected
    assert expected[0] == expected[1]


def test_a_state_from_before_the_capture_is_not_set_in_replays() -> None:
    state = torch.cuda.get_rng_state()

    def body() -> torch.Tensor:
        torch.cuda.set_rng_state(state)
        return draw()

    graph, drawn = captured(body)
    torch.manual_seed(4)
    graph.replay()
    first = drawn.tolist()
    graph.replay()
    assert drawn.tolist() != first
