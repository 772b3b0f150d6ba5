"""Forward passes that a program makes -> those that a backward pass reaches; an agent that acts makes others, too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from graphdoctor.target.program.events import Event

_MOST_NODES = 200_000


def numbers_of_graph(tensors: object) -> set[int]:
    """The numbers of autograd's nodes on which these hang: a tensor, or several."""
    several: tuple[Any, ...] = tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
    waiting = [each.grad_fn for each in several if _is_tensor(each)]
    seen: set[object] = set()
    numbers: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        numbers.add(node._sequence_nr())
        waiting += [earlier for earlier, _ in node.next_functions]
    return numbers


def used(events: Sequence[Event], numbers: set[int]) -> list[Event]:
    """Without forward passes of which autograd made nodes that no backward pass has reached."""
    reached = sorted(numbers)

    def is_used(event: Event, following: Event) -> bool:
        if event.kind != "forward" or following.number <= event.number:
            return True
        first = bisect_left(reached, event.number)
        return first < len(reached) and reached[first] < following.number

    return [event for event, following in pairwise(events) if is_used(event, following)] + [
        *events[-1:]
    ]


def _is_tensor(value: object) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(value, torch.Tensor)
