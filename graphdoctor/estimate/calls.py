"""Estimates what the calls of graphs cost the host and the device, without the graphs themselves.

A replay writes over its results, so that those which others keep are copied. Where Dynamo made the graph, that is also
each parameter's gradient, and code that writes into state was made to return it: the state is copied before
it is written, and copied back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from graphdoctor.estimate.costs import bandwidth_gb_s, transfer_us
from graphdoctor.estimate.gpus import DeviceProfile, Figure
from graphdoctor.estimate.kernels import launches_over
from graphdoctor.estimate.ranges import ZERO
from graphdoctor.estimate.two_lanes import Piece
from graphdoctor.values.recording import Iteration, Op, TensorUse


class Calls(Struct, frozen=True):
    """How often a step does what `CallCosts` has the figures of."""

    module: int = 0
    trained_module: int = 0
    segment: int = 0
    trained_segment: int = 0
    segment_parameter: int = 0
    glue: int = 0
    segment_tensor: int = 0
    segment_module: int = 0

    @property
    def are_of_dynamo(self) -> bool:
        return bool(self.segment or self.trained_segment)


NO_CALLS = Calls()
Regions = Sequence[Sequence[int]]  # operator indices of each region, in execution order


def calling(calls: Calls, profile: DeviceProfile) -> tuple[Piece, ...]:
    """What calling the graphs costs the host beside their launches, as one piece that launches nothing."""
    total = ZERO
    for name in calls.__struct_fields__:
        figure: Figure = getattr(profile.call_us, name)
        total += figure.range * getattr(calls, name)
    return (Piece(total, ZERO, 0),) if total.mid else ()


def handed_over(
    iteration: Iteration, profile: DeviceProfile, regions: Regions | None, calls: Calls
) -> Iterator[Piece]:
    """What graphs of parts copy for those who keep their results; those of a split step stay where they lie."""
    if calls.are_of_dynamo or calls.module or calls.trained_module:
        piece = copies_piece(iteration, profile, regions, by_dynamo=calls.are_of_dynamo)
        if piece is not None:
            yield piece


def copies_piece(
    iteration: Iteration, profile: DeviceProfile, regions: Regions | None, *, by_dynamo: bool
) -> Piece | None:
    """All of them as one piece, the host's part of which is in what a call costs; None: there are none."""
    inside = None if regions is None else {index for region in regions for index in region}
    ops = [op for op in iteration.ops if inside is None or op.index in inside]
    others = [op for op in iteration.ops if inside is not None and op.index not in inside]
    results = list(_kept(iteration, ops, others, with_gradients=by_dynamo))
    written = list(_written_state(iteration, ops)) if by_dynamo else []
    if not results and not written:
        return None
    # Dynamo's results are copied together, those of modules one by one; state by kernels of the graph.
    launched = launches_over(results, lists=2) if by_dynamo else len(results)
    moved = 2 * sum(use.nbytes for use in results) + 4 * sum(use.nbytes for use in written)
    rate = bandwidth_gb_s(profile, profile.memory_share.stream, moved=moved)
    floor = profile.smallest_kernel_us.stream.range * (launched + 2 * len(written))
    return Piece(ZERO, transfer_us(moved, rate) + floor, 1, is_copy=True)


def _kept(
    iteration: Iteration, ops: Sequence[Op], others: Sequence[Op], *, with_gradients: bool
) -> Iterator[TensorUse]:
    """One use of each storage that the graphs make and somebody else reads."""
    known = {external.storage for external in iteration.externals}
    made: dict[int, TensorUse] = {}
    for op in ops:
        for use in op.outputs:
            if use.is_cuda and use.storage not in known:
                made.setdefault(use.storage, use)
    readers = [op for op in others if with_gradients or op.phase != "optimizer"]
    read = {use.storage for op in readers for use in op.inputs}
    read |= {leaf.value.storage for leaf in iteration.outputs if isinstance(leaf.value, TensorUse)}
    return (use for storage, use in made.items() if storage in read)


def _written_state(iteration: Iteration, ops: Sequence[Op]) -> Iterator[TensorUse]:
    """One use of each storage of state that the graphs write into."""
    state = {each.storage for each in iteration.externals if each.origin == "state"}
    found: dict[int, TensorUse] = {}
    for op in ops:
        for use in (*op.inputs, *op.outputs):
            if use.is_cuda and use.storage in op.writes and use.storage in state:
                found.setdefault(use.storage, use)
    return iter(found.values())
