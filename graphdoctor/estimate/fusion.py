"""Estimates the kernels that a compiler would launch instead, and what that gains in a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.calls import Regions
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import (
    KERNELS,
    is_attention,
    is_foreach,
    launches,
)
from graphdoctor.estimate.predict import estimate
from graphdoctor.operators import transfer_of
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Iteration, Op, TensorUse

# Pointwise work, reductions and normalizations, reads and writes by index, and concatenations are what
# Inductor generates kernels for; products, attention, sorts and bags of embeddings stay library calls.
_GENERATED = frozenset({"stream", "strided", "reduce", "normalize", "concat", "gather"})
_LIBRARY = ("_embedding_bag", "_local_scalar_dense", "_cudnn_rnn", "_fft_", "_thnn_fused")
_MOST_KERNELS = 2  # of one operator; one that launches more sorts
_FUSED_NAME = "inductor.fused.default"  # costs what one pointwise kernel does that moves as much
# What six workloads gained beyond that on an H200 (torch 2.11.0, 2026-11-22; benchmarks/data/results):
# from 0.95 to 1.30 times as much in five. BERT's inference, whose attention takes another path while it is
# captured, gained 1.8 times as much.
_BEYOND = 1.3


class Fused(Struct, frozen=True):
    """An iteration as a compiler would launch it; `position_of` each recorded operator in it."""

    iteration: Iteration
    position_of: tuple[int, ...]
    launches_before: int

    @property
    def launches(self) -> int:
        return sum(map(launches, self.iteration.ops))


def fused(iteration: Iteration) -> Fused:
    """Each stretch of generated work between two other kernels becomes one kernel.

    It reads what it does not make, and writes what others read, or nobody. Only what runs in modules,
    forward or backward, is compiled.
    """
    ops, compiled = iteration.ops, _compiled(iteration.ops)
    last_read = {use.storage: op.index for op in ops for use in op.inputs}
    made: list[Op] = []
    position_of: list[int] = []
    for run in _runs(ops, compiled):
        if len(run) > 1:
            made.append(_one_kernel(run, last_read, index=len(made)))
            position_of.extend([len(made) - 1] * len(run))
            continue
        position_of.append(len(made))
        made.append(replace(run[0], index=len(made)))
    changed = replace(iteration, ops=tuple(made), events=())
    return Fused(changed, tuple(position_of), sum(map(launches, ops)))


def with_fusion(
    speedup: Range, iteration: Iteration, profile: DeviceProfile, regions: Regions | None
) -> Range:
    """The speed-up of these regions as graphs, were their kernels a compiler's.

    In the middle what fusion saves of the time that the graphs take; at the low end nothing. Where
    nothing is fused it is what it was.
    """
    found = fused(iteration)
    if found.launches == found.launches_before:
        return speedup
    before = estimate(iteration, profile, regions).graph_us.mid
    if regions is not None:
        regions = [sorted({found.position_of[index] for index in region}) for region in regions]
    after = estimate(found.iteration, profile, regions).graph_us.mid
    gain = max(1.0, before / after) if after else 1.0
    return Range(speedup.low, speedup.mid * gain, speedup.high * gain * _BEYOND)


def _compiled(ops: Sequence[Op]) -> frozenset[int]:
    """The operators that a compiled model generates kernels for, by index."""
    in_models = {op.index for op in ops if op.phase == "forward" and op.module}
    if not any(op.module for op in ops):  # the step itself is what is compiled
        in_models = {op.index for op in ops if op.phase == "forward"}
    return frozenset(
        op.index
        for op in ops
        if (op.index in in_models or (op.phase == "backward" and op.forward_index in in_models))
        and _is_generated(op)
    )


def _is_generated(op: Op) -> bool:
    if not op.is_cuda or is_foreach(op) or transfer_of(op) is not None:
        return False
    if op.may_draw:  # by eager's own kernels, so that the numbers are eager's
        return False
    if is_attention(op) or op.base_name.startswith(_LIBRARY):
        return False
    known = KERNELS.get(op.base_name)
    return known is None or (known.kind in _GENERATED and (known.count or 1) <= _MOST_KERNELS)


def _runs(ops: Sequence[Op], compiled: frozenset[int]) -> Iterator[list[Op]]:
    """Operators that become one kernel, or one by one; views in between belong to them."""
    run: list[Op] = []
    for op in ops:
        is_free = not launches(op)
        if op.index in compiled or (is_free and run and op.phase == run[0].phase):
            if run and op.phase != run[0].phase:
                yield from _ended(run)
                run = []
            run.append(op)
            continue
        yield from _ended(run)
        run = []
        yield [op]
    yield from _ended(run)


def _ended(run: list[Op]) -> Iterator[list[Op]]:
    """A run without two kernels is no fusion."""
    if sum(1 for op in run if launches(op)) > 1:
        yield run
    else:
        yield from ([op] for op in run)


def _one_kernel(run: Sequence[Op], last_read: dict[int, int], *, index: int) -> Op:
    made: dict[int, TensorUse] = {}
    read: dict[int, TensorUse] = {}
    working = [op for op in run if launches(op)]  # a view reads nothing
    for op in working:
        for use in op.inputs:
            if use.storage not in made:
                read.setdefault(use.storage, use)
        written = (use for use in op.inputs if use.storage in op.writes)
        made.update((use.storage, use) for use in (*op.outputs, *written))
    last = run[-1].index
    inside = {use.storage for op in working for use in op.inputs}
    kept = [
        use
        for storage, use in made.items()
        if last_read.get(storage, -1) > last or storage not in inside or storage in read
    ]
    return replace(
        run[0],
        index=index,
        name=_FUSED_NAME,
        args=tuple(read.values()),
        kwargs=(),
        outputs=tuple(kept),
        writes=tuple(storage for storage in made if storage in read),
        tags=(),
    )
