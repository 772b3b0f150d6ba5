"""A step that was built from graphs and eager calls, to be called with other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.split.breakable import BreakableCapture
from graphdoctor.graphs.split.glue import Gradients, Pending, read
from graphdoctor.graphs.static_inputs import StaticInputs
from graphdoctor.target import Inputs
from graphdoctor.target.state.snapshot import Snapshot
from graphdoctor.target.state.tree import Tree
from graphdoctor.values.locations import Location


@dataclass(frozen=True, slots=True)
class Made:
    """What the captured run took and gave; `start` is the state that it began with."""

    static_inputs: Inputs
    outputs: object
    gradients: Gradients | None
    start: Snapshot


class Graphs:
    """Several graphs, asked as one what an emulated graph knows."""

    def __init__(self, capture: BreakableCapture) -> None:
        self._capture = capture

    def last_writer(self, tensor: torch.Tensor) -> tuple[str, Location | None] | None:
        """The last captured operator that wrote into a tensor; the glue between may have since."""
        for graph in reversed(self._capture.graphs):
            asked = getattr(graph, "last_writer", None)
            written: tuple[str, Location | None] | None = asked(tensor) if asked else None
            if written is not None:
                return written
        return None

    @property
    def device(self) -> object:
        """The emulated device, or None."""
        return next((getattr(graph, "device", None) for graph in self._capture.graphs), None)


class BuiltSplit:
    """Graphs with the glue between them, which is run for real in each call."""

    def __init__(self, roots: Mapping[str, object], capture: BreakableCapture, made: Made) -> None:
        self.graph = Graphs(capture)
        self.start = made.start
        self.static_inputs = made.static_inputs
        self._static = StaticInputs(made.static_inputs)
        self._roots = roots
        self._capture = capture
        self._made = made
        self._outputs = Tree(made.outputs)

    @property
    def operators(self) -> int:
        """How many operators are in graphs; 0 where the graphs do not tell."""
        return sum(int(getattr(graph, "operators", 0)) for graph in self._capture.graphs)

    def load(self, inputs: Inputs) -> None:
        """Copy fresh values into the static inputs. Raises `InputMismatch`."""
        self._static.load(inputs)

    def replay(self) -> None:
        """One step, on what was loaded and on the state as it is now."""
        for piece in self._capture.pieces:
            piece.run()
        if self._made.gradients is not None:
            self._made.gradients.put_back()

    def call(self, inputs: Inputs) -> object:
        self.load(inputs)
        self.replay()
        return self.outputs

    @property
    def outputs(self) -> object:
        """What the last call gives back: the same tensors each time, and values read anew."""
        return self._outputs.map(read)

    @property
    def footprint(self) -> Footprint:
        """What is there now; where the step's own Python put a tensor, the one of the captured run."""
        return self.left_behind(self.static_inputs, self.outputs)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        seen = footprint(self._roots, self.static_inputs, outputs)
        tensors = dict(seen.tensors)
        for path, tensor in self._capture.changes.rebound.items():
            tensors.pop(path, None)
            if tensor is not None:
                tensors[path] = tensor
        return Footprint(tensors, seen.values, seen.host)

    def release(self) -> None:
        """Give the graphs and their memory back; it cannot be called any more."""
        self._capture.reset()
        if self._made.gradients is not None:
            self._made.gradients.forget()
        self._outputs = Tree(None)
        self._capture.changes.rebound.clear()


def holds_pending(value: object) -> bool:
    """Whether a value is one that the step read on the host."""
    return type(value) is Pending
