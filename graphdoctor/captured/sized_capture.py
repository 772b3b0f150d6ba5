"""Captures a model for several sizes, with a graph for each in one pool of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphdoctor.captured.forward_graph import Setup
from graphdoctor.captured.module import CapturedModel
from graphdoctor.captured.plan import CapturePlan
from graphdoctor.captured.replays import Replays
from graphdoctor.captured.sizes import Sizes
from graphdoctor.captured.study import Study, alone, study, target_of, watched_device
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.guards import Modes
from graphdoctor.target import Inputs
from graphdoctor.target.user_code import is_out_of_memory
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.speed import GraphMemory


def capture_sizes(
    model: torch.nn.Module, given: Inputs, wanted: tuple[int, ...], *, dim: int, clones: bool
) -> tuple[CapturedModel | None, tuple[str, ...]]:
    """The model with graphs, the largest first, whose memory the others then fit into.

    None where no size could be captured. The sentences say which were not, and why. Raises
    `UsageError` where no input has a size in `dim`.
    """
    target = target_of(model, given)
    target.close()
    sizes = Sizes(model, target, given, dim=dim, clones=clones)
    setup = Setup(Modes(), clones=clones, pool=Pool(), parts=False)
    replays = Replays(model, context=setup.context, growth=sizes)
    left_out: list[str] = []
    launches = 0
    memories: list[GraphMemory] = []
    for size in reversed(wanted):
        found, is_full = _studied(model, sizes.at(size), setup)
        if found.graph is not None:
            sizes.add(size, found.graph)
            replays.add(found.graph)
            launches = max(launches, found.launches.get("", 0))
            memories += [found.memory] if found.memory is not None else []
            continue
        left_out.append(f"No graph of size {size}: {'; '.join(found.obstacles)}")
        if not is_full and not sizes.graphs:
            break  # what stands in the way of the largest is no matter of size
    if not sizes.graphs:
        return None, tuple(left_out)
    with alone():
        for padded in sizes.prove():
            replays.add(padded)
    plan = CapturePlan(
        "whole",
        launches=launches,
        captured_launches=launches,
        sizes=tuple(sorted(sizes.graphs)),
        left_out=tuple(left_out),
        memory=_together(memories),
    )
    return CapturedModel(model, plan, replays, sizes=sizes), ()


def _together(memories: Sequence[GraphMemory]) -> GraphMemory | None:
    """Of graphs in one pool, the last made last: each has inputs and outputs, and they share the rest."""
    if not memories:
        return None
    largest = max(memories, key=lambda each: each.pool_bytes)
    outputs = sum(each.outputs_bytes for each in memories)
    return GraphMemory(
        inputs_bytes=sum(each.inputs_bytes for each in memories),
        outputs_bytes=outputs,
        intermediates_bytes=max(each.intermediates_bytes for each in memories),
        pool_bytes=largest.pool_bytes + outputs - largest.outputs_bytes,
        workspace_bytes=max(each.workspace_bytes for each in memories),
        measured_bytes=memories[-1].measured_bytes,
    )


def _studied(model: torch.nn.Module, inputs: Inputs, setup: Setup) -> tuple[Study, bool]:
    """What came of one size, and whether memory ran out."""
    try:
        with watched_device() as device:
            return study(model, inputs, device, setup), False
    except GraphDoctorError as error:
        cause = error.__cause__
        return Study((str(error),)), cause is not None and is_out_of_memory(cause)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Study(("memory ran out",)), True
