"""Dynamo, for the length of a `with` block: what it keeps afterwards is as if it had not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import fx

from graphdoctor.graphs.segments.parts import Break
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.locations import Location

# What the graphs rely on: name in torch._dynamo.config -> its value here.
_DYNAMO = {
    "capture_scalar_outputs": False,  # .item() ends a graph: Python decides on the value
    "capture_dynamic_output_shape_ops": False,  # nonzero() too
    "suppress_errors": False,
}
# A backward pass may be asked for twice, as eager's may.
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
