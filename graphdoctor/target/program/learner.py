"""What a thread does until its training step is known -> that step's statements."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from graphdoctor.target.program.events import At, Event, location_of, without_frames
from graphdoctor.target.program.loop_step import LoopStep
from graphdoctor.target.program.loops import Loop, learn
from graphdoctor.target.program.rebuild import NotRebuilt
from graphdoctor.values.locations import Location

_MOST_NODES = 200_000
_MOST_EVENTS = 20_000  # older ones say nothing about a step
_MOST_NUMBERS = 1_000_000


@dataclass
class Learner:
    """Listens to one thread. `cannot` says why its training steps have no statements, "" where they may have."""

    cannot: str = ""
    backwards: Counter[Location] = field(default_factory=Counter)  # since an optimizer stepped
    _events: list[Event] = field(default_factory=list)
    _numbers: set[int] = field(default_factory=set)  # of nodes that a backward pass reached
    acting: frozenset[tuple[int, int]] = frozenset()  # code, by id, and line of unused passes

    def acts_at(self, places: Sequence[At]) -> bool:
        """Whether forward passes from this line were used by no backward pass: an agent acts there."""
        return bool(places) and (id(places[0].code), places[0].line) in self.acting

    def note(self, event: Event) -> Loop | None:
        """The training step, once enough of them were seen."""
        if event.kind == "backward":
            if event.places:
                self.backwards[location_of(event.places[0])] += 1
            if len(self._numbers) < _MOST_NUMBERS:
                self._numbers |= numbers_of_graph(event.subject)
        elif event.kind == "step":
            self.backwards.clear()
        self._events.append(without_frames(event))
        del self._events[:-_MOST_EVENTS]
        loop = None
        if event.kind == "step":
            try:
                knows_all = len(self._numbers) < _MOST_NUMBERS
                events = used(self._events, self._numbers) if knows_all else self._events
                loop = learn(events)
                self.acting = frozenset(_calls(self._events)).difference(_calls(events))
            except NotRebuilt as reason:
                self.cannot = str(reason)
        if loop is not None or self.cannot:
            self._events.clear()
            self._numbers.clear()
        return loop


@dataclass
class Thread:
    """What one thread has done so far."""

    learner: Learner = field(default_factory=Learner)
    loop: LoopStep | None = None
    passes: int = 0  # of the loop, since its optimizer stepped
    unused_forwards: int = 0  # forward passes with gradients that nothing followed
    marked: LoopStep | None = None  # the step that runs, where the program marks its steps


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
    """Without forward passes of which autograd made nodes that no backward pass has reached.

    An agent that acts makes such ones.
    """
    reached = sorted(numbers)

    def is_used(event: Event, following: Event) -> bool:
        if event.kind != "forward" or following.number <= event.number:
            return True
        first = bisect_left(reached, event.number)
        return first < len(reached) and reached[first] < following.number

    return [event for event, following in pairwise(events) if is_used(event, following)] + [
        *events[-1:]
    ]


def _calls(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """The lines that call modules, by the identity of their code."""
    for event in events:
        if event.kind == "forward" and event.places:
            yield id(event.places[0].code), event.places[0].line


def _is_tensor(value: object) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(value, torch.Tensor)
