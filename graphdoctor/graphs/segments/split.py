"""Split a torch.fx graph of ATen operators into runs to capture and the rest between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch.fx.passes.split_module import split_module

from graphdoctor.estimate import launches
from graphdoctor.graphs.segments.nodes import (
    DeviceOf,
    device_of,
    is_free,
    location_of,
    op_of,
    why_unsafe,
)
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import Location, bracketed, file_line

_SHOWN = 3  # reasons of one part


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One operator that cannot be captured. `why` follows its name: "aten.nonzero.default waits"."""

    operator: str
    why: str
    location: Location | None

    @property
    def text(self) -> str:
        return f"{self.operator} {self.why}{bracketed(self.location)}"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive nodes of a graph. Captured as one CUDA graph, or run eagerly for these reasons."""

    captured: bool
    nodes: int
    launches: int
    first: Location | None
    last: Location | None
    unsafe: tuple[Unsafe, ...] = ()

    @property
    def text(self) -> str:
        how = "one CUDA graph" if self.captured else "eager"
        lines = f"{how}: {count_text(self.launches, 'launch')}{_span(self.first, self.last)}"
        if self.captured:
            return lines
        shown = "; ".join(unsafe.text for unsafe in self.unsafe[:_SHOWN])
        more = len(self.unsafe) - _SHOWN
        why = shown or "too few launches to pay"
        return f"{lines}, because {why}" + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph and its parts, in order. `name` says which pass it is: "forward", "backward"."""

    name: str
    parts: tuple[Part, ...]

    @property
    def launches(self) -> int:
        return sum(part.launches for part in self.parts)

    @property
    def captured_launches(self) -> int:
        return sum(part.launches for part in self.parts if part.captured)

    @property
    def text(self) -> str:
        return "\n".join((f"{self.name}:", *(f"  {part.text}" for part in self.parts)))


@dataclass(frozen=True, slots=True)
class Break:
    """Where the graphs end and Python goes on: the reason, and the user's line."""

    reason: str
    location: Location | None

    @property
    def text(self) -> str:
        return f"Python goes on{bracketed(self.location)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SegmentsPlan:
    """The graphs of one step, and the breaks between them."""

    graphs: tuple[GraphPlan, ...]
    breaks: tuple[Break, ...]

    @property
    def captured_share(self) -> float | None:
        """Of the launches in the graphs; None where there is no launch."""
        launches = sum(graph.launches for graph in self.graphs)
        if not launches:
            return None
        return sum(graph.captured_launches for graph in self.graphs) / launches

    @property
    def summary(self) -> str:
        parts = [part for graph in self.graphs for part in graph.parts]
        captured = [part for part in parts if part.captured]
        inside = sum(part.launches for part in captured)
        launches = sum(part.launches for part in parts)
        return (
            f"{count_text(len(self.graphs), 'graph')} in {count_text(len(parts), 'part')}, "
            f"{len(captured)} of them captured, with {inside} of {count_text(launches, 'launch')}; "
            f"{count_text(len(self.breaks), 'graph break')}"
        )

    @property
    def text(self) -> str:
        """The whole plan, one line a part and a break."""
        bodies = [graph.text for graph in self.graphs] + [each.text for each in self.breaks]
        return "\n".join((self.summary, *bodies))


def _span(first: Location | None, last: Location | None) -> str:
    if first is None or last is None:
        return ""
    if first.file != last.file:
        return f", {file_line(first)} to {file_line(last)}"
    if first.line == last.line:
        return f", {file_line(first)}"
    low, high = sorted((first.line, last.line))
    return f", {file_line(Location(first.file, low))}-{high}"


FEWEST_LAUNCHES = 5  # a replay costs about as much as two launches, and copying in and out as well
_OUTSIDE = frozenset({"placeholder", "get_attr", "output"})


@dataclass(slots=True)
class _Run:
    """Consecutive nodes of one kind, while they are collected."""

    safe: bool
    nodes: list[fx.Node] = field(default_factory=list)
    launches: int = 0
    unsafe: list[Unsafe] = field(default_factory=list)

    @property
    def captured(self) -> bool:
        return self.safe and self.launches >= FEWEST_LAUNCHES

    def part(self) -> Part:
        lines = [line for line in map(location_of, self.nodes) if line is not None]
        return Part(
            captured=self.captured,
            nodes=len(self.nodes),
            launches=self.launches,
            first=lines[0] if lines else None,
            last=lines[-1] if lines else None,
            unsafe=tuple(dict.fromkeys(self.unsafe)),
        )


@dataclass(frozen=True)
class Split:
    """The parts of a graph, and the part that each node belongs to, by position in `plan.parts`."""

    plan: GraphPlan
    numbers: Mapping[fx.Node, int]


Why = Callable[[fx.Node], str]  # what stands in the way of capturing a node; "" if nothing does


def split(
    graph: fx.Graph, name: str = "graph", *, where: DeviceOf = device_of, also: Why | None = None
) -> Split:
    """Cut a graph before and after what cannot be captured; `also` knows of more than the nodes tell.

    What takes no launch, such as a view, stays with what comes before it. Safe runs too short to
    pay join what is eager around them. The order of the nodes stays as it is, so that what is written
    in place is written at its time.
    """
    runs = list(_merged(_runs(graph, where, also or (lambda node: ""))))
    numbers = {node: number for number, run in enumerate(runs) for node in run.nodes}
    return Split(GraphPlan(name, tuple(run.part() for run in runs)), numbers)


def _runs(graph: fx.Graph, where: DeviceOf, also: Why) -> Iterator[_Run]:
    run = _Run(safe=True)
    owner: dict[fx.Node, _Run] = {}
    for node in graph.nodes:
        if node.op in _OUTSIDE:
            continue
        if is_free(node):
            source = node.args[0]
            taken_from = owner.get(source, run) if isinstance(source, fx.Node) else run
            owner[node] = taken_from
            taken_from.nodes.append(node)
            continue
        op = op_of(node, where)
        why, count = why_unsafe(node, where) or also(node), launches(op) if op is not None else 0
        if (why or count) and bool(why) == run.safe:
            if run.nodes:
                yield run
            run = _Run(safe=not why)
        owner[node] = run
        run.nodes.append(node)
        run.launches += count
        if why:
            name = op.name if op is not None else str(node.target)
            run.unsafe.append(Unsafe(name, why, location_of(node)))
    if run.nodes:
        yield run


def _merged(runs: Iterator[_Run]) -> Iterator[_Run]:
    """Runs that are captured, and everything between two of them as one."""
    between: _Run | None = None
    for run in list(runs):
        if run.captured:
            if between is not None:
                yield between
                between = None
            yield run
            continue
        if between is None:
            between = _Run(safe=False)
        between.nodes += run.nodes
        between.launches += run.launches
        between.unsafe += run.unsafe
    if between is not None:
        yield between


def modules_of(
    graph_module: fx.GraphModule, parts: Split
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The graph with a submodule for each part, and the names of those, in order."""
    numbers = parts.numbers

    def number(node: Any) -> int:
        return numbers[node]

    whole = split_module(graph_module, graph_module, number, keep_original_order=True)
    return whole, tuple(f"submod_{place}" for place in range(len(parts.plan.parts)))
