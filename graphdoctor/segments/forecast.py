"""A recorded step -> the graphs that Dynamo would find in it and their parts, foreseen without running Dynamo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdoctor.estimate import launches
from graphdoctor.recording import HostEvent, Iteration, Op
from graphdoctor.segments.nodes import ends_graph
from graphdoctor.segments.plan import Break, GraphPlan, SegmentsPlan
from graphdoctor.segments.split import split

# What Python does that Dynamo leaves to Python.
_ENDING_EVENTS = frozenset(
    {"sync", "query", "tensor-repr", "rng-state", "pinned-allocation", "graph-replay"}
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would be captured. `regions` are the operators of each captured part, by index."""

    plan: SegmentsPlan
    regions: tuple[tuple[int, ...], ...]


def forecast(iteration: Iteration) -> Forecast:
    """Cut the operators of the models as Dynamo and the splitter would.

    A graph ends where the host reads a value or a size, and where Python does what Dynamo cannot
    trace; other reasons of Dynamo's are not seen in a recording. What runs outside the models, such as
    the optimizer, stays with Python. Each forward graph has a backward graph where it is trained.
    """
    forward = list(_forward_graphs(iteration))
    groups = [("forward", ops) for ops in forward]
    groups += [("backward", ops) for ops in _backward_graphs(iteration, forward)]
    graphs: list[GraphPlan] = []
    regions: list[tuple[int, ...]] = []
    for name, ops in groups:
        number = sum(plan.name.startswith(name) for plan in graphs) + 1
        graph, captured = _planned(iteration, ops, f"{name} graph {number}")
        graphs.append(graph)
        regions.extend(captured)
    plan = SegmentsPlan(tuple(graphs), tuple(dict.fromkeys(_breaks(iteration))))
    return Forecast(plan, tuple(sorted(regions)))


def _planned(
    iteration: Iteration, ops: Sequence[Op], name: str
) -> tuple[GraphPlan, Iterator[tuple[int, ...]]]:
    from graphdoctor.record.fx import to_fx

    parts = split(to_fx(iteration, ops).graph, name)
    members: dict[int, list[int]] = {}
    for node, number in parts.numbers.items():
        op = node.meta.get("op")
        if isinstance(op, Op) and parts.plan.parts[number].captured:
            members.setdefault(number, []).append(op.index)
    return parts.plan, (tuple(dict.fromkeys(found)) for found in members.values())


def _forward_graphs(iteration: Iteration) -> Iterator[list[Op]]:
    """Runs of forward operators inside models, between what ends a graph."""
    has_models = any(op.module for op in iteration.ops)
    stops = {event.op_index for event in _ending_events(iteration)}
    run: list[Op] = []
    for position, op in enumerate(iteration.ops):
        outside = op.phase != "forward" or (has_models and not _is_in_model(op))
        if (outside or position in stops or ends_graph(op)) and any(map(launches, run)):
            yield run
            run = []
        if not outside and not ends_graph(op):
            run.append(op)
    if any(map(launches, run)):
        yield run


def _is_in_model(op: Op) -> bool:
    """A model without a name of its own is told by the method that runs."""
    frames = ((op.location,) if op.location is not None else ()) + op.stack
    return bool(op.module) or any(frame.function == "forward" for frame in frames)


def _backward_graphs(iteration: Iteration, forward: Sequence[Sequence[Op]]) -> Iterator[list[Op]]:
    """The backward operators of each forward graph, the last one's first."""
    graph_of = {op.index: number for number, ops in enumerate(forward) for op in ops}
    found: dict[int, list[Op]] = {}
    for op in iteration.ops:
        if op.phase == "backward" and op.forward_index in graph_of:
            found.setdefault(graph_of[op.forward_index], []).append(op)
    yield from found.values()


def _breaks(iteration: Iteration) -> Iterator[Break]:
    has_models = any(op.module for op in iteration.ops)
    for op in iteration.ops:
        inside = op.phase == "forward" and (not has_models or _is_in_model(op))
        if inside and (why := ends_graph(op)):
            yield Break(f"{op.name} {why}", op.location)
    for event in _ending_events(iteration):
        if not has_models or event.module:
            yield Break(f"{event.name} is called", event.location)


def _ending_events(iteration: Iteration) -> Iterator[HostEvent]:
    return (event for event in iteration.events if event.kind in _ENDING_EVENTS)
