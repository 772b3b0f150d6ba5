"""A backend for torch.compile: each graph that Dynamo finds runs with its safe parts as CUDA graphs.

model.compile(backend=Segments(), dynamic=False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from graphdoctor.graphs.segments.graph import SegmentedGraph, Shared, Told
from graphdoctor.graphs.segments.split import (
    Break,
    DeviceOf,
    GraphPlan,
    SegmentsPlan,
    device_of,
    split,
)
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.locations import Location

# What the graphs rely on: name in torch._dynamo.config -> its value here.
_DYNAMO = {
    "capture_scalar_outputs": False,  # .item() ends a graph: Python decides on the value
    "capture_dynamic_output_shape_ops": False,  # nonzero() too
    "suppress_errors": False,
}
# A backward pass may run twice, as in eager.
_FUNCTORCH = {"donated_buffer": False}


@contextmanager
def settings() -> Iterator[None]:
    """The settings of Dynamo that the graphs rely on, for every compilation in this block."""
    import torch._dynamo
    import torch._functorch.config

    with ExitStack() as stack:
        for config, wanted in (
            (torch._dynamo.config, _DYNAMO),
            (torch._functorch.config, _FUNCTORCH),
        ):
            known: dict[str, Any] = {
                name: value for name, value in wanted.items() if hasattr(config, name)
            }
            stack.enter_context(config.patch(known))
        yield


def forget() -> None:
    """Drop every compiled graph and guard of the process."""
    import torch._dynamo

    torch._dynamo.reset()


def break_at(graph_module: fx.GraphModule) -> Break | None:
    """Why Dynamo ended this graph, where it had to: Python goes on there."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return None
    first_line = str(reason.reason).strip().split("\n", 1)[0]
    lines = [
        Location(frame.filename, frame.lineno or 0, frame.name)
        for frame in reason.user_stack
        if not is_machinery(frame.filename)
    ]
    return Break(first_line, lines[-1] if lines else None)


_Run = Callable[..., Any]


class Segments:
    """Splits what AOTAutograd makes of Dynamo's graphs, forward and backward alike.

    Dynamo's guards and the Python between its graphs stay, so that control flow that depends on data
    stays right. `capture=False` only plans: `plan` then says what would be captured, and everything
    runs eagerly; `where` says where tensors lie, for a plan on a machine without a GPU.
    """

    def __init__(self, *, capture: bool = True, where: DeviceOf = device_of) -> None:
        self._plans: list[GraphPlan] = []
        self.graphs: list[SegmentedGraph] = []
        self._breaks: list[Break] = []
        self._capture, self._where = capture, where
        self._shared: Shared | None = None

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> _Run:
        """What torch.compile calls for each graph."""
        from torch._dynamo.backends.common import aot_autograd

        if (ended := break_at(graph_module)) is not None and ended not in self._breaks:
            self._breaks.append(ended)
        compiler = aot_autograd(
            fw_compiler=self._compiler("forward"),
            bw_compiler=self._compiler("backward"),
            inference_compiler=self._compiler("inference"),
            # What is written into buffers then is written by the graph, and not after it.
            keep_inference_input_mutations=True,
        )
        with settings():
            run: _Run = compiler(graph_module, inputs)
        return run

    def release(self) -> None:
        """Give all graphs and their memory back; what was compiled runs eagerly from then on."""
        for graph in self.graphs:
            graph.release()
        self.graphs.clear()

    @property
    def plan(self) -> SegmentsPlan:
        """The graphs that came so far, and where Dynamo ended them."""
        return SegmentsPlan(tuple(self._plans), tuple(self._breaks))

    @property
    def is_captured(self) -> bool:
        """Whether any part of any graph is a CUDA graph by now."""
        return self.captured_parts > 0

    @property
    def captured_parts(self) -> int:
        """How many parts are CUDA graphs by now."""
        return sum(part.is_captured for graph in self.graphs for part in graph.captured_parts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why parts that were to be captured were not."""
        parts = (part for graph in self.graphs for part in graph.captured_parts)
        return tuple(dict.fromkeys(part.refused for part in parts if part.refused))

    def _compiler(self, kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], _Run]:
        def compile_graph(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> _Run:
            return self._compiled(graph_module, kind)

        return compile_graph

    def _compiled(self, graph_module: fx.GraphModule, kind: str) -> _Run:
        count = sum(plan.name.startswith(kind) for plan in self._plans) + 1
        parts = split(graph_module.graph, f"{kind} graph {count}", where=self._where)
        self._plans.append(parts.plan)
        if not self._capture or not any(part.captured for part in parts.plan.parts):
            return _boxed(graph_module)
        if self._shared is None:
            self._shared = Shared(side=torch.cuda.Stream(), lent=[], guarded=True)
        told = _told(keeps=kind == "forward") if kind != "backward" else Told()
        graph = SegmentedGraph(graph_module, parts, self._shared, told)
        self.graphs.append(graph)
        return _boxed(graph)


def _told(*, keeps: bool) -> Told:
    """What AOTAutograd says of the forward graph that it compiles, as far as this torch does.

    The results that follow what the caller gets are kept for the backward, where it `keeps` any.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    owned = getattr(metadata, "num_forward", None) if keeps else None
    static = getattr(metadata, "static_input_indices", None) or ()
    return Told(owned if isinstance(owned, int) else None, frozenset(static))


def _boxed(run: _Run) -> _Run:
    """AOTAutograd hands all arguments over in one list, which the callee empties to free memory."""

    def boxed(args: list[Any]) -> Any:
        results = run(*args)
        args.clear()
        return results

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed
