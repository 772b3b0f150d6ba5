"""Captures a further graph for inputs that no graph serves, while there is room, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from graphdoctor.captured.forward_graph import Answering, GuardedGraph
from graphdoctor.graphs.calls import mismatch
from graphdoctor.graphs.calls.signature import Key
from graphdoctor.target import Inputs

Make = Callable[[Inputs], GuardedGraph | str]


class Growth(Protocol):
    """What to do about a call that no graph serves: something that answers it, or why there is nothing."""

    def answering(self, key: Key, inputs: Inputs) -> Answering | str: ...

    def release(self) -> None:
        """Hold no memory of graphs any more."""
        ...


class OneEach:
    """A graph for each make of inputs, up to `most` of them, which `make` makes."""

    def __init__(self, make: Make, most: int) -> None:
        self._make, self._most = make, most
        self._captured: list[Inputs] = []
        self._tried: dict[Key, str] = {}

    def has(self, graph: GuardedGraph) -> None:
        """Count a graph that was made elsewhere."""
        self._captured.append(graph.static_inputs)

    def answering(self, key: Key, inputs: Inputs) -> Answering | str:
        if (why := self._tried.get(key)) is not None:
            return why
        if len(self._captured) + len(self._tried) >= self._most:
            return unlike(self._captured, inputs)
        made = self._make(inputs)
        if isinstance(made, str):
            self._tried[key] = made
        else:
            self.has(made)
        return made

    def release(self) -> None:
        self._captured.clear()


def unlike(captured: Sequence[Inputs], inputs: Inputs) -> str:
    """What tells a call from the captured ones, in the shortest sentence."""
    return min((mismatch(each, inputs) for each in captured), key=len)
