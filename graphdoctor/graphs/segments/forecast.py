"""Predict from a recorded step which graphs Dynamo would find, and their parts, without running Dynamo."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from graphdoctor.estimate import launches
from graphdoctor.graphs.segments.split import Break, GraphPlan, SegmentsPlan, ends_graph, split
from graphdoctor.operators import fact_about
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.recording import Iteration, Op

_TAKING = frozenset({"index", "_unsafe_index", "index_select", "gather", "take", "embedding"})
_OF_VALUES = "works on a size that depends on values"
_OF_ITERATION = "works on another shape in other iterations"
_MADE_ANEW = "is in a graph that Dynamo compiles again for each shape of the state"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would be captured. `regions` are the operators of each captured part, by index.

    `has_varying`: some would be, did they not work on other shapes in other iterations.
    """

    plan: SegmentsPlan
    regions: tuple[tuple[int, ...], ...]
    has_varying: bool = False


def forecast(
    iteration: Iteration,
    *,
    left_out: Collection[str] = (),
    varying: frozenset[int] = frozenset(),
    by_inputs: bool = False,
) -> Forecast:
    """Cut the operators of the models, but for the modules `left_out`, as Dynamo and the splitter would.

    A graph ends where the host reads a value or a size, and where Python does what Dynamo cannot
    trace; other reasons of Dynamo's are not seen in a recording. A CUDA graph holds one shape, so that
    the operators `varying`, by index, stay outside. Where the shapes of inputs vary, Dynamo makes their
    sizes symbolic; where others do, it makes the whole graph anew for each shape. What runs outside the models,
    such as the optimizer, stays with Python. Each forward graph has a backward graph where it is trained.
    """
    step = _Step(iteration, frozenset(left_out), varying, by_inputs)
    forward = list(step.forward_graphs())
    groups = [("forward", ops) for ops in forward]
    groups += [("backward", ops) for ops in _backward_graphs(iteration, forward)]
    graphs: list[GraphPlan] = []
    regions: list[tuple[int, ...]] = []
    for name, ops in groups:
        number = sum(plan.name.startswith(name) for plan in graphs) + 1
        graph, captured = step.planned(ops, f"{name} graph {number}")
        graphs.append(graph)
        regions.extend(captured)
    plan = SegmentsPlan(tuple(graphs), tuple(dict.fromkeys(step.breaks())))
    return Forecast(plan, tuple(sorted(regions)), step.has_varying)


class _Step:
    """One iteration, and which of its operators belong to models."""

    def __init__(
        self,
        iteration: Iteration,
        left_out: Collection[str],
        varying: frozenset[int],
        by_inputs: bool,
    ) -> None:
        self._iteration = iteration
        self._left_out = left_out
        self._has_models = any(op.module for op in iteration.ops)
        self._of_values = varying_sizes(iteration)
        self._varying, self._by_inputs = varying - self._of_values, by_inputs
        self.has_varying = False

    def planned(self, ops: Sequence[Op], name: str) -> tuple[GraphPlan, Iterator[tuple[int, ...]]]:
        from graphdoctor.partition.fx import to_fx

        reasons = self._reasons(ops)

        def also(node: fx.Node) -> str:
            op = node.meta.get("op")
            return reasons.get(op.index, "") if isinstance(op, Op) else ""

        parts = split(to_fx(self._iteration, ops).graph, name, also=also)
        members: dict[int, list[int]] = {}
        for node, number in parts.numbers.items():
            op = node.meta.get("op")
            if isinstance(op, Op) and parts.plan.parts[number].captured:
                members.setdefault(number, []).append(op.index)
        return parts.plan, (tuple(dict.fromkeys(found)) for found in members.values())

    def _reasons(self, ops: Sequence[Op]) -> dict[int, str]:
        """Why operators of one graph stay outside, by index."""
        varying = {op.index for op in ops if op.index in self._varying and launches(op)}
        self.has_varying |= bool(varying)
        reasons = dict.fromkeys(varying, _OF_ITERATION)
        if varying and not self._by_inputs:
            reasons = dict.fromkeys((op.index for op in ops if launches(op)), _MADE_ANEW)
        of_values = {op.index for op in ops if op.index in self._of_values and launches(op)}
        return reasons | dict.fromkeys(of_values, _OF_VALUES)

    def forward_graphs(self) -> Iterator[list[Op]]:
        """Runs of forward operators inside models, between what ends a graph."""
        stops = {event.op_index for event in self._ending_events()}
        run: list[Op] = []
        for position, op in enumerate(self._iteration.ops):
            belongs = self._belongs(op)
            ends = not belongs or position in stops or bool(ends_graph(op))
            if ends and any(map(launches, run)):
                yield run
                run = []
            if belongs and not ends_graph(op):
                run.append(op)
        if any(map(launches, run)):
            yield run

    def breaks(self) -> Iterator[Break]:
        for op in self._iteration.ops:
            if self._belongs(op) and (why := ends_graph(op)):
                yield Break(f"{op.name} {why}", op.location)
        for event in self._ending_events():
            if not self._has_models or event.module:
                yield Break(f"{event.name} is called", event.location)

    def _belongs(self, op: Op) -> bool:
        """Whether it is the forward of a model; one without a name is told by the method that runs."""
        if op.phase != "forward" or op.module.partition(".")[0] in self._left_out:
            return False
        frames = ((op.location,) if op.location is not None else ()) + op.stack
        in_forward = any(frame.function == "forward" for frame in frames)
        return not self._has_models or bool(op.module) or in_forward

    def _ending_events(self) -> Iterator[HostEvent]:
        return (event for event in self._iteration.events if event.ends_graph)


def varying_sizes(iteration: Iteration) -> frozenset[int]:
    """The operators, by index, that work on tensors whose size depends on values.

    Such a size comes from an operator whose result the host had to learn the size of, and goes on
    to every result that is not of the size of something that has it not.
    """
    varying: set[int] = set()
    found: set[int] = set()
    for op in iteration.ops:
        if fact_about(op, "sizes-result") is not None:
            varying.update(use.storage for use in op.outputs)
            continue
        inputs = op.inputs
        if not any(use.storage in varying for use in inputs):
            continue
        found.add(op.index)
        fixed = {use.shape for use in inputs if use.storage not in varying}
        if op.base_name in _TAKING:
            fixed = set()  # as many as the index has, which may be as many as there are
        for use in op.outputs:
            if use.shape and use.shape not in fixed and use.storage not in op.writes:
                varying.add(use.storage)
    return frozenset(found)


def _backward_graphs(iteration: Iteration, forward: Sequence[Sequence[Op]]) -> Iterator[list[Op]]:
    """The backward operators of each forward graph, the last one's first."""
    graph_of = {op.index: number for number, ops in enumerate(forward) for op in ops}
    found: dict[int, list[Op]] = {}
    for op in iteration.ops:
        if op.phase == "backward" and op.forward_index in graph_of:
            found.setdefault(graph_of[op.forward_index], []).append(op)
    yield from found.values()
