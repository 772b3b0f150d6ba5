"""A verified capture of a model's forward pass -> its graph, with the key and the guard of the calls that it serves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphdoctor.graphs.calls import (
    ForwardGraph,
    Nesting,
    Outputs,
    Unwatchable,
    distinct,
    signature,
)
from graphdoctor.graphs.calls.outputs import tensors_in
from graphdoctor.graphs.guards import Guard, Modes
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.target.state.clone import memory_of


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of the recorded operators. `repeats`: running twice is the same as once."""

    repeats: bool
    launches: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What graphs are captured under, and whether their outputs are `clones` of their memory."""

    context: Modes
    clones: bool = True


class GuardedGraph:
    """One graph and what it was captured from; `release` gives all its memory back."""

    def __init__(
        self, captured: CapturedStep, traits: Traits, setup: Setup, roots: dict[str, object]
    ) -> None:
        self.traits = traits
        self.state = Guard(roots)
        self.static_inputs = captured.static_inputs
        self.key, given = signature(captured.static_inputs.args, captured.static_inputs.kwargs)
        _check(distinct(given), self.state.tensors)
        outputs = Outputs(
            Nesting(captured.outputs),
            tensors_in(captured.outputs),
            inputs=given,
            state=self.state.tensors,
            clones=setup.clones,
        )
        self.forward = ForwardGraph(captured.graph, given, outputs.build)

    def release(self) -> None:
        """Give the graph's memory back; it cannot be called any more."""
        self.forward.release()


def _check(given: list[torch.Tensor], state: list[torch.Tensor]) -> None:
    """Only inputs that new values can be copied into, each by itself."""
    for tensor in given:
        if not tensor.is_cuda:
            raise Unwatchable(f"an input is on {tensor.device}: a graph reads inputs on the GPU")
    if len(memory_of(given)) < len(given):
        raise Unwatchable("two inputs share memory, which other inputs need not do")
    if memory_of(given) & memory_of(state):
        raise Unwatchable("an input is part of the model's own state")
