"""A captured forward pass -> one that can be called with new values again and again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.captured.context import Context
from graphdoctor.captured.outputs import Outputs
from graphdoctor.captured.signature import Unwatchable, signature
from graphdoctor.captured.state_watch import StateWatch
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.target.state.clone import copy_values, is_overlapping, memory_of

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]
Load = Callable[[Tensors], None]


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of the recorded operators. `repeats`: running twice is the same as once."""

    repeats: bool
    launches: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What graphs are captured under, and whether their outputs are `clones` of their memory."""

    context: Context
    clones: bool = True


class ForwardGraph:
    """One graph, what it was captured from, and its memory; `release` gives it all back."""

    def __init__(
        self, captured: CapturedStep, traits: Traits, setup: Setup, roots: dict[str, object]
    ) -> None:
        self.traits = traits
        self.state = StateWatch(roots)
        self.static_inputs = captured.static_inputs
        self.key, given = signature(captured.static_inputs.args, captured.static_inputs.kwargs)
        _check(given, self.state.tensors)
        outputs = Outputs(
            captured.outputs, inputs=given, state=self.state.tensors, clones=setup.clones
        )
        self.build = outputs.build
        self.load = _loader([tensor.detach() for tensor in given])
        self._graph: Any = captured.graph
        self.replay: Callable[[], None] = captured.graph.replay

    def release(self) -> None:
        """Give the graph's memory back; it cannot be called any more."""
        self._graph.reset()


def _check(given: list[torch.Tensor], state: list[torch.Tensor]) -> None:
    """Only inputs that new values can be copied into, each by itself."""
    distinct = {id(tensor): tensor for tensor in given}.values()
    for tensor in distinct:
        if not tensor.is_cuda:
            raise Unwatchable(f"an input is on {tensor.device}: a graph reads inputs on the GPU")
    if len(memory_of(distinct)) < len(distinct):
        raise Unwatchable("two inputs share memory, which other inputs need not do")
    if memory_of(distinct) & memory_of(state):
        raise Unwatchable("an input is part of the model's own state")


def _loader(static: list[torch.Tensor]) -> Load:
    if not static:
        return lambda fresh: None
    if any(map(is_overlapping, static)):

        def one_by_one(fresh: Tensors) -> None:
            for into, values in zip(static, fresh, strict=True):
                copy_values(into, values)

        return one_by_one
    by_dtype: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(static):
        by_dtype.setdefault(tensor.dtype, []).append(place)
    copies = [_copier(static, places) for places in by_dtype.values()]
    if len(copies) == 1:
        return copies[0]

    def each_dtype(fresh: Tensors) -> None:
        for copy in copies:
            copy(fresh)

    return each_dtype


def _copier(static: list[torch.Tensor], places: list[int]) -> Load:
    """Copies those of one dtype: one launch, where several dtypes together would take one each."""
    if len(places) == len(static) > 1:
        return lambda fresh: torch._foreach_copy_(static, fresh)
    into, pick = [static[place] for place in places], operator.itemgetter(*places)
    if len(places) == 1:
        copy = into[0].copy_

        def only(fresh: Tensors) -> None:
            copy(pick(fresh))

        return only
    return lambda fresh: torch._foreach_copy_(into, pick(fresh))
