"""What a strategy built -> something that can be compared with eager and timed, like a graph of the step."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from graphdoctor.graphs.footprint import Footprint
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built
from graphdoctor.strategies.whole import BuiltWhole
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, named_tensors
from graphdoctor.target.target import Inputs


class _NoGraph(Struct, frozen=True):
    """Stands where a graph would tell more. `device` can make code believe that it is captured.

    `other_path` says why that may round differently, "" where it is code that asks.
    """

    device: Any
    other_path: str = ""


class BuiltStep:
    """A `Replayable` of what a strategy built.

    Its runs start from the session's state. Where what was built is one graph of the whole
    step, they start from the state of that capture, which may have tensors of its own, and an
    emulated graph is asked which operator wrote a tensor.
    """

    def __init__(self, built: Built, session: Session) -> None:
        whole = built.captured if isinstance(built, BuiltWhole) else None
        self.start: Snapshot = whole.start if whole is not None else session.start
        self.graph: Any = whole.graph if whole is not None else _NoGraph(session.device)
        if built.other_path:
            self.graph = _NoGraph(built, built.other_path)
        self.footprint = Footprint({}, {}, {})
        self._built = built
        self._roots = session.target.roots
        self._inputs = Inputs()

    def load(self, inputs: Inputs) -> None:
        """Take the inputs, on memory of their own: a step may write into them."""
        kept = memory_of(named_tensors(self._roots).values())
        self._inputs = clone_inputs(inputs, kept=kept)

    def replay(self) -> None:
        """One call, and a look at what it left behind."""
        outputs = self._built.call(self._inputs)
        self.footprint = self._built.left_behind(self._inputs, outputs)

    def call(self, inputs: Inputs) -> object:
        """One call as a user makes it: nothing is cloned, and nobody looks."""
        return self._built.call(inputs)
