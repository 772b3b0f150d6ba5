"""Split a torch.fx graph of ATen operators into runs to capture and the rest between them, by what its nodes do."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from graphdoctor.device.observe.operators import OperatorFacts, each_in, facts_of, tensors_of
from graphdoctor.device.observe.storages import arg_of
from graphdoctor.estimate import launches
from graphdoctor.operators import fact_about, host_learns, load_table
from graphdoctor.partition.fx import operator_named
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import Location, bracketed, file_line
from graphdoctor.values.recording import Op, TensorUse, tensors_in

DeviceOf = Callable[[torch.Tensor], str]
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_KNOWN = frozenset({"aten", "prims"})
_COPIES = frozenset({"_to_copy", "copy_", "copy", "_copy_from"})
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LEARNED = {
    "value": "gives a value of the device to the host",
    "size": "makes a result whose size depends on values",
}
_UNSAFE = "is marked by torch as unsafe for CUDA graphs"


def device_of(tensor: torch.Tensor) -> str:
    """The device of a tensor, in the form of a recording: "cuda:0" or "cpu"."""
    device = tensor.device
    return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)


def op_of(node: fx.Node, where: DeviceOf = device_of) -> Op | None:
    """The operator that a node calls; None for a node that calls none.

    A node of `to_fx` has it; any other has its tensors in `meta["val"]`.
    """
    recorded = node.meta.get("op")
    if isinstance(recorded, Op):
        return recorded
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return _Reader(where).op(node, node.target)


class _Reader:
    """Numbers the storages of one node's tensors, so that views are known as views."""

    def __init__(self, where: DeviceOf) -> None:
        self._where = where
        self._numbers: dict[int, int] = {}

    def op(self, node: fx.Node, target: torch._ops.OpOverload) -> Op:
        facts = facts_of(target)
        given: Any = map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
        args = tuple(arg_of(value, self._use) for value in given[0])
        kwargs = tuple((name, arg_of(value, self._use)) for name, value in given[1].items())
        outputs = tuple(map(self._use, tensors_of(node.meta.get("val"))))
        uses = (*tensors_in((*args, *(value for _, value in kwargs))), *outputs)
        on_device = any(use.is_cuda for use in uses)
        changed = [each.meta.get("val") for each in written_nodes(node, facts)]
        return Op(
            index=0, name=facts.name, args=args, kwargs=kwargs, outputs=outputs,
            writes=tuple(self._use(tensor).storage for tensor in tensors_of(changed)),
            tags=facts.tags, phase="forward", module="",
            device="cuda:0" if on_device else "cpu", location=location_of(node),
        )  # fmt: skip

    def _use(self, tensor: torch.Tensor) -> TensorUse:
        memory = memory_of_value(tensor)
        return TensorUse(
            storage=self._numbers.setdefault(memory, len(self._numbers)),
            shape=tuple(map(_size, tensor.shape)),
            stride=_strides(tensor),
            offset=0,
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=self._where(tensor),
            itemsize=tensor.element_size(),
        )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(map(_size, tensor.stride()))
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return ()


def _size(size: Any) -> int:
    return size if isinstance(size, int) else -1  # -1: known while it runs only


def memory_of_value(tensor: torch.Tensor) -> int:
    """Equal for the values of two nodes that share memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage of its own
        return id(tensor)


def written_nodes(node: fx.Node, facts: OperatorFacts) -> Iterator[fx.Node]:
    """The nodes whose memory a call writes into."""
    if facts.writes_if is not None and not node.args[facts.writes_if]:
        return
    for position in facts.written_args:
        if position < len(node.args):
            yield from each_in(node.args[position], fx.Node)
    for name in facts.written_kwargs:
        yield from each_in(node.kwargs.get(name), fx.Node)


def location_of(node: fx.Node) -> Location | None:
    """The user's line that a node comes from, as the one who traced it noted."""
    recorded = node.meta.get("location")
    if isinstance(recorded, Location):
        return recorded
    found = None
    for match in _FRAME.finditer(node.meta.get("stack_trace") or node.stack_trace or ""):
        if not is_machinery(match["file"]):
            found = Location(match["file"], int(match["line"]), match["function"])
    return found


def is_free(node: fx.Node) -> bool:
    """Whether it takes something out of what another node made: no operator at all."""
    return node.target is operator.getitem


def why_unsafe(node: fx.Node, where: DeviceOf = device_of) -> str:
    """Why this node cannot be captured, to follow the operator's name; "" if it can."""
    if any(isinstance(source.meta.get("val"), _SYMBOLS) for source in node.all_input_nodes):
        return "takes a number from the host that may change"
    op = op_of(node, where)
    if op is None:
        if is_free(node) or not any(True for _ in _tensors_around(node)):
            return ""
        return "is not an operator that can be looked up"
    return _why(op)


def _tensors_around(node: fx.Node) -> Iterator[torch.Tensor]:
    yield from tensors_of(node.meta.get("val"))
    for source in node.all_input_nodes:
        yield from tensors_of(source.meta.get("val"))


def ends_graph(op: Op) -> str:
    """Why Dynamo cannot trace past an operator, to follow its name; "" where it can."""
    fact = fact_about(op, "reads-value", "sizes-result")
    if fact is not None:
        return fact.why
    return _LEARNED.get(host_learns(op), "") if any(use.is_cuda for use in op.inputs) else ""


def _why(op: Op) -> str:
    uses = (*op.inputs, *op.outputs)
    if uses and not any(use.is_cuda for use in uses):
        return "runs on the CPU"
    if any(not use.is_cuda for use in uses):
        return _why_mixed(op)
    if len({use.device for use in uses}) > 1:
        return "takes tensors of several devices"
    fact = fact_about(op)
    if fact is not None:
        return fact.why or "cannot be captured"
    if learned := host_learns(op):
        return _LEARNED[learned]
    if op.base_name not in load_table().hazards and "cudagraph_unsafe" in op.tags:
        return _UNSAFE
    if op.name.split(".", 1)[0] not in _KNOWN:
        return "is not one of torch's operators: what it does inside is unknown"
    if _is_attention_with_dropout(op):
        return "keeps its random seed on the host in eager and on the device in a graph"
    if any(-1 in use.shape for use in uses):
        return "has a size that is only known while it runs"
    return ""


def _is_attention_with_dropout(op: Op) -> bool:
    """Its backward reads the seed where eager left it, or where a graph did: never the other's.

    A forward in a graph and a backward outside of it read an address of the device on the host.
    """
    if "attention" not in op.base_name:
        return False
    schema = getattr(operator_named(op.name), "_schema", None)  # None: this torch lacks it
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = dict(op.kwargs).get("dropout_p", argument.default_value)
            return bool(op.args[place] if place < len(op.args) else given)
    return False


def _why_mixed(op: Op) -> str:
    if op.base_name in _COPIES:
        return "copies between the host and the device"
    fact = fact_about(op)
    if fact is not None and fact.why:
        return fact.why
    if all(use.is_cuda or not use.shape for use in op.inputs) and op.outputs:
        return "takes a number from the host, which a graph would freeze"
    return "takes tensors of the host and of the device"


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
