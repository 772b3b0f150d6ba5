"""Captures a graph for each size of one dimension; other sizes are padded to the next larger, where that is proved.

A call takes the smallest graph that has room for its rows. The rows that are left over are zeros, and
the answer is cut to what eager returns. Whether that is the same answer is tried, for each size before
any call of it is answered so: with zeros it has to be eager's on the inputs without padding, as far as
rounding of another shape goes; and with other rows in place of the zeros it has to stay as it is, bit for
bit. A model whose answer for one row depends on the others (batch norm in training, a mean over the
batch, attention without a mask) fails there, and the graph then serves calls of its own size only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphdoctor.captured.forward_graph import GuardedGraph, Traits
from graphdoctor.captured.padding import Fill, answer_of, cut, padding, rest, split, unlike
from graphdoctor.graphs.calls import (
    Nesting,
    Outputs,
    Unwatchable,
    mismatch,
    signature,
)
from graphdoctor.graphs.calls.outputs import kind_of, tensors_in
from graphdoctor.graphs.calls.signature import Key
from graphdoctor.graphs.compare import gap_between
from graphdoctor.graphs.graphed_callable import GraphedCallable, Tensors
from graphdoctor.target import Inputs, Target
from graphdoctor.target.inputs.rebatch import BatchPlan, find_batch, rebatched
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.target.user_code import first_line

_WAY_OUT = "capture() can pad plain tensors that have the varying size in the dimension `dim`"
_WRITES = "the forward pass writes into its state or draws random numbers, and would do so for padding too"


@dataclass(frozen=True, slots=True)
class SizeUse:
    """What a graph of one size did: calls of that size, calls of less that were padded to it.

    `padding` is the share of the rows it computed that were padding, 0.0 to 1.0. `only` is why it
    serves calls of its own size only, or "".
    """

    size: int
    exact: int
    padded: int
    padding: float
    only: str = ""


class Padded:
    """A graph that answers calls of fewer rows than it has: `Answering`, for one such size."""

    def __init__(self, of: GuardedGraph, size: int, key: Key, forward: GraphedCallable) -> None:
        self.of, self.size, self.key, self.forward = of, size, key, forward
        self.traits: Traits = of.traits
        self.state = of.state
        self.served = 0


class Sizes:
    """The graphs of `model` by size, and the proofs of what lies between. A `Growth`.

    `target` is the forward pass on the `described` inputs, whose size in `dim` varies. Raises
    `UsageError` where no input has such a size.
    """

    def __init__(
        self, model: torch.nn.Module, target: Target, described: Inputs, *, dim: int, clones: bool
    ) -> None:
        self.plan: BatchPlan = find_batch(target, described, dim=dim, way_out=_WAY_OUT)
        self.graphs: dict[int, GuardedGraph] = {}
        self.only: dict[int, str] = {}
        self._model, self._clones = model, clones
        self._described = described
        self._fills: dict[int, Fill] = {}
        self._padded: list[Padded] = []
        self._refused: dict[Key, str] = {}
        self._done: tuple[SizeUse, ...] = ()  # once it is released
        self._switches = frozenset(_switches(described, self.plan))

    def at(self, size: int) -> Inputs:
        """The described inputs at another size, in memory of their own."""
        return rebatched(self._described, self.plan, size)

    def add(self, size: int, graph: GuardedGraph) -> None:
        """Let a graph answer calls of `size`, and be tried with padding."""
        self.graphs[size] = graph
        fill = self._fills[size] = Fill()
        load = graph.forward.load

        def filled(fresh: Tensors) -> None:
            fill.by = None
            load(fresh)

        graph.forward.load = filled

    def prove(self) -> Iterator[Padded]:
        """Try the smallest, the middle and the largest size that each graph would pad."""
        below = 0
        for size, graph in sorted(self.graphs.items()):
            between = range(below + 1, size)
            below = size
            for tried in sorted(
                {between[0], between[len(between) // 2], between[-1]} if between else ()
            ):
                made = self._tried(graph, size, tried)
                if isinstance(made, str):
                    self.only[size] = made
                    break
                self._padded.append(made)
                yield made

    def answering(self, key: Key, inputs: Inputs) -> Padded | str:
        """What answers a call that no graph answered yet, or why none does."""
        if (why := self._refused.get(key)) is not None:
            return why
        try:
            size = self._size_of(inputs)
        except (KeyError, IndexError, AttributeError):
            return mismatch(self._described, inputs)
        larger = min((captured for captured in self.graphs if captured > size), default=None)
        if size < 1 or size in self.graphs:
            return mismatch(self.at(size) if size else self._described, inputs)
        if larger is None:
            return f"the call is larger than the largest captured size, {max(self.graphs)}"
        if why := self.only.get(larger):
            return f"the graph of size {larger} serves calls of that size only: {why}"
        graph = self.graphs[larger]
        if not graph.state.is_same() and (changed := graph.state.difference()):
            return changed
        if signature(*_call(self.at(size)))[0] != key:
            return mismatch(self.at(size), inputs)
        made = self._proved(graph, larger, size, inputs)
        if isinstance(made, str):
            self._refused[key] = f"size {size} is not padded to {larger}: {made}"
            return self._refused[key]
        self._padded.append(made)
        return made

    def release(self) -> None:
        """Keep what the graphs did, and none of their memory."""
        self._done = self.uses
        self.graphs.clear()
        self._padded.clear()
        self._fills.clear()

    @property
    def uses(self) -> tuple[SizeUse, ...]:
        """What each graph has answered so far."""
        return self._done or tuple(self._use(size) for size in sorted(self.graphs))

    def _use(self, size: int) -> SizeUse:
        graph = self.graphs[size]
        padded = [each for each in self._padded if each.of is graph]
        calls = sum(each.served for each in padded)
        rows = (graph.served + calls) * size
        spare = sum((size - each.size) * each.served for each in padded)
        share = spare / rows if rows else 0.0
        return SizeUse(size, graph.served, calls, share, self.only.get(size, ""))

    def _size_of(self, inputs: Inputs) -> int:
        leaf: Any = input_leaves(inputs)[min(self.plan.paths)]
        return int(leaf.shape[self.plan.dim])

    def _tried(self, graph: GuardedGraph, size: int, fewer: int) -> Padded | str:
        """On rows of what the graph was verified with last, and on the described ones."""
        of_graph = replace(self.plan, size=size)
        made: Padded | str = ""
        for given in (rebatched(graph.static_inputs, of_graph, fewer), self.at(fewer)):
            made = self._proved(graph, size, fewer, given)
            if isinstance(made, str):
                return made
        return made

    def _proved(self, graph: GuardedGraph, size: int, fewer: int, given: Inputs) -> Padded | str:
        if not graph.traits.repeats:
            return _WRITES
        torch.cuda.synchronize()
        try:
            with torch.no_grad():
                return self._compared(graph, size, fewer, given)
        except Unwatchable as reason:
            return str(reason)
        except RuntimeError as error:
            return f"the model fails at this size ({first_line(error)})"

    def _compared(self, graph: GuardedGraph, size: int, fewer: int, given: Inputs) -> Padded | str:
        key, tensors = signature(*_call(given))
        expected = self._model(*given.args, **given.kwargs)
        wanted = tensors_in(expected)
        if not graph.state.is_same() and (changed := graph.state.difference()):
            return f"a call of this size leaves something behind in Python ({changed})"
        if kind_of(expected) != graph.kind:
            return "the model returns other kinds of values at this size"
        cuts = [cut(full, like) for full, like in zip(graph.made, wanted, strict=True)]
        if any(each is None for each in cuts):
            return "an output is larger at this size than at the captured one"
        views, spare = split(graph.given, tensors, self.plan.dim, fewer)
        outputs = Outputs(
            Nesting(expected),
            [each for each in cuts if each is not None],
            inputs=views,
            state=graph.state.tensors,
            clones=self._clones,
        )
        forward = GraphedCallable(graph.graph, views, outputs.build)
        forward.load = padding(forward.load, spare, self._fills[size])
        why = unlike(wanted, answer_of(forward, tensors)) or self._leak(
            graph, forward, tensors, fewer
        )
        self._fills[size].by = None
        if why:
            return why
        return Padded(graph, fewer, key, forward)

    def _leak(
        self, graph: GuardedGraph, forward: GraphedCallable, tensors: list[torch.Tensor], fewer: int
    ) -> str:
        """Whether other rows in place of the zeros change the answer: repeated ones, which are valid."""
        zeros = answer_of(forward, tensors)
        for place, (static, tensor) in enumerate(zip(graph.given, tensors, strict=True)):
            if static.shape != tensor.shape and place not in self._switches:
                rows = (
                    torch.arange(fewer, static.shape[self.plan.dim], device=tensor.device) % fewer
                )
                spare = rest(static, self.plan.dim, fewer)
                spare.copy_(tensor.index_select(self.plan.dim, rows))
        forward.replay()
        others = tensors_in(forward.build(tensors))
        gaps = (gap_between("", one, other) for one, other in zip(zeros, others, strict=True))
        if all(gap is None or gap.is_rounding for gap in gaps):
            return ""
        return "the result of one row depends on the other rows"


def _switches(described: Inputs, plan: BatchPlan) -> list[int]:
    """The places of masks: what is on or off says whether a row counts, and stays off for padding.

    Where there is nothing else that varies, they are no masks.
    """
    paths = {id(leaf): path for path, leaf in input_leaves(described).items()}
    varying = [
        (place, tensor)
        for place, tensor in enumerate(signature(*_call(described))[1])
        if paths.get(id(tensor)) in plan.paths
    ]
    masks = [place for place, tensor in varying if bool(((tensor == 0) | (tensor == 1)).all())]
    return masks if len(masks) < len(varying) else []


def _call(inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
    return inputs.args, inputs.kwargs
