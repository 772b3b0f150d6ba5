"""Recorded operators -> the kernels that a compiler would launch instead, and what that gains in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import KERNELS, is_copy_between_devices, is_foreach, launches
from graphdoctor.estimate.predict import Regions, estimate
from graphdoctor.values.recording import Iteration, Op, TensorUse
from graphdoctor.values.report import Range

# Pointwise work, reductions and normalizations, indexed reads and concatenations are what Inductor
# generates kernels for; products, attention, sorts and library calls stay what they are.
_GENERATED = frozenset({"stream", "strided", "reduce", "normalize", "concat"})
_READS_BY_INDEX = frozenset({"index_select", "embedding", "index", "gather", "take"})
_MOST_KERNELS = 2  # of one operator; one that launches more sorts or scatters
_RANDOM = "nondeterministic_seeded"  # drawn by eager's own kernels, so that the numbers are eager's
_REDUCING = frozenset({"reduce", "normalize"})
_POINTWISE_NAME, _REDUCTION_NAME = "inductor.pointwise.default", "inductor.mean.default"
# The share, in log, of what fusion is predicted to gain that is taken as the middle: assumed, since
# generated kernels are neither always as fast as eager's nor fused as far as they could be.
_EXPECTED = 0.5


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

    From nothing gained to all that fusion would, by the time that the graphs take.
    """
    found = fused(iteration)
    before = estimate(iteration, profile, regions).graph_us.mid
    after = estimate(found.iteration, profile, _moved(regions, found)).graph_us.mid
    gain = max(1.0, before / after) if after else 1.0
    return Range(speedup.low, speedup.mid * gain**_EXPECTED, speedup.high * gain)


def _moved(regions: Regions | None, found: Fused) -> Regions | None:
    if regions is None:
        return None
    return [sorted({found.position_of[index] for index in region}) for region in regions]


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
    if not op.is_cuda or _RANDOM in op.tags or is_foreach(op) or is_copy_between_devices(op):
        return False
    name = op.base_name
    if name in _READS_BY_INDEX:
        return True
    known = KERNELS.get(name)
    if known is None:
        return name not in _LIBRARY and "attention" not in name
    return known.kind in _GENERATED and known.count <= _MOST_KERNELS


_LIBRARY = frozenset({"_local_scalar_dense", "_cudnn_rnn", "_cudnn_rnn_backward", "_fft_c2c"})


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
    for op in run:
        for use in op.inputs:
            if use.storage not in made:
                read.setdefault(use.storage, use)
        made.update((use.storage, use) for use in _written(op) if launches(op))
    last = run[-1].index
    inside = {use.storage for op in run for use in op.inputs}
    kept = [
        use
        for storage, use in made.items()
        if last_read.get(storage, -1) > last or storage not in inside or storage in read
    ]
    reduces = any(_kind(op) in _REDUCING for op in run)
    return replace(
        run[0],
        index=index,
        name=_REDUCTION_NAME if reduces else _POINTWISE_NAME,
        args=tuple(read.values()),
        kwargs=(),
        outputs=tuple(kept),
        writes=tuple(storage for storage in made if storage in read),
        tags=(),
        module=run[0].module,
    )


def _kind(op: Op) -> str:
    known = KERNELS.get(op.base_name)
    return known.kind if known is not None else ""


def _written(op: Op) -> Iterable[TensorUse]:
    yield from op.outputs
    yield from (use for use in op.inputs if use.storage in op.writes)
