"""The graph of a verified forward pass, with the key and the guard of the calls that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from graphdoctor.graphs.calls import (
    Nesting,
    Outputs,
    Unwatchable,
    distinct,
    signature,
)
from graphdoctor.graphs.calls.outputs import kind_of, tensors_in
from graphdoctor.graphs.calls.signature import Key
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.graphed_callable import GraphedCallable
from graphdoctor.graphs.guards import Guard, Modes
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.target.state.clone import memory_of


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a graph. `repeats`: running its operators twice is the same as once.

    `hands_out`: answers are its own memory, and may come back as the inputs of the next call.
    `is_audited`: a replay that is discarded would be reported as the program's fault.
    """

    repeats: bool
    launches: int
    hands_out: bool = False
    is_audited: bool = False

    @property
    def may_run_for_nothing(self) -> bool:
        """Whether the model can still be called after a replay that does not count."""
        return self.repeats and not self.hands_out and not self.is_audited


@dataclass(frozen=True, slots=True)
class Setup:
    """What graphs are captured under, and whether their outputs are `clones` of their memory.

    `pool` is the memory that all of them share, if they do; without `parts`, nothing less than the
    whole forward pass is captured.
    """

    context: Modes
    clones: bool = True
    pool: Pool | None = None
    parts: bool = True


class GuardedGraph:
    """One graph and what it was captured from; `release` gives all its memory back.

    `graph`, `given` and `made` are the CUDA graph and the tensors that it reads and fills, and `kind` is
    all of the answer but its tensors. `served` counts the calls that it answered.
    """

    def __init__(
        self, captured: CapturedStep, traits: Traits, setup: Setup, roots: dict[str, object]
    ) -> None:
        self.served = 0
        self.traits = traits
        with torch.no_grad():  # as the forward ran
            self.state = Guard(roots)
        self.static_inputs = captured.static_inputs
        self.key, given = signature(captured.static_inputs.args, captured.static_inputs.kwargs)
        _check(distinct(given), self.state.tensors)
        self.graph: Any = captured.graph
        self.given, self.made = given, tensors_in(captured.outputs)
        self.kind = kind_of(captured.outputs)
        outputs = Outputs(
            Nesting(captured.outputs),
            self.made,
            inputs=given,
            state=self.state.tensors,
            clones=setup.clones,
        )
        self.forward = GraphedCallable(captured.graph, given, outputs.build)

    def release(self) -> None:
        """Give the graph's memory back; it cannot be called any more."""
        self.forward.release()
        self.graph, self.made = None, []


class Answering(Protocol):
    """What answers the calls of one `key`: a graph, or a larger one with some of its rows for padding."""

    key: Key
    served: int
    traits: Traits
    state: Guard
    forward: GraphedCallable


def _check(given: list[torch.Tensor], state: list[torch.Tensor]) -> None:
    """Only inputs that new values can be copied into, each by itself."""
    for tensor in given:
        if not tensor.is_cuda:
            raise Unwatchable(f"an input is on {tensor.device}: a graph reads inputs on the GPU")
    if len(memory_of(given)) < len(given):
        raise Unwatchable("two inputs share memory, which other inputs need not do")
    if memory_of(given) & memory_of(state):
        raise Unwatchable("an input is part of the model's own state")
