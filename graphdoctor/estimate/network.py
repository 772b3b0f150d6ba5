"""A collective and a GPU's profile -> how long its data are on the way, and how much of that other work hides.

Data go round a ring, as NCCL sends them: each rank passes on parts of what it has, over the links of one host. What ranks
that come late make the others wait is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from graphdoctor.estimate.gpus import LEVELS, DeviceProfile
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.ranges import add, divide, product, scale
from graphdoctor.values.recording import Arg, Op, tensors_in
from graphdoctor.values.report import Range

WAIT = "wait_tensor"  # of functional collectives
_ALL_REDUCES = ("allreduce", "all_reduce")
# Each rank has or gets one part of what moves, and the others' parts pass it by.
_OF_PARTS = (
    "allgather", "_allgather", "all_gather", "reduce_scatter", "_reduce_scatter", "alltoall", "all_to_all",
    "gather", "scatter",
)  # fmt: skip


def network_us(op: Op, profile: DeviceProfile) -> Range:
    """From when the last rank has come to it."""
    assert op.exchange is not None
    hops, share = _way(op.base_name, op.exchange.ranks)
    if not hops:
        return profile.smallest_kernel_us.stream.range
    figures = profile.network
    rate = product(figures.link_gb_s.range, figures.share.range)
    alone = add(figures.latency_us.range, scale(figures.hop_us.range, hops - 1))
    return add(alone, divide(share * moved_bytes(op) / 1e3, rate))


def _way(name: str, ranks: int) -> tuple[int, float]:
    """How many times data are passed on, and how much each rank sends, as a share of all that moves."""
    if name.startswith(_ALL_REDUCES):
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    if name.startswith(_OF_PARTS):
        return ranks - 1, (ranks - 1) / ranks
    return ranks - 1, 1.0 if ranks > 1 else 0.0


def moved_bytes(op: Op) -> int:
    """Of the side that has all of it."""
    return max((_nbytes(arg) for arg in (*op.args, op.outputs)), default=0)


def _nbytes(arg: Arg) -> int:
    return sum(use.nbytes for use in tensors_in((arg,)))


def exposed_us(
    ops: Sequence[Op], device_us: Callable[[Op], Range]
) -> dict[int, Range]:
    """For each collective, by its operator's index, the time in which nothing else can run on the device.

    Collectives run one after the other. What uses a result, or is called after a collective that is waited for at
    once, waits for it; the step's end waits for all.
    """
    if not any(op.exchange is not None for op in ops):
        return {}
    times = [device_us(op) for op in ops]
    ends = [dict(_exposed_at(ops, [getattr(each, level) for each in times])) for level in LEVELS]
    return {index: Range(*sorted(end[index] for end in ends)) for index in ends[0]}


def _exposed_at(ops: Sequence[Op], times_us: Sequence[float]) -> Iterator[tuple[int, float]]:
    now = free = 0.0  # of the device, and of the network
    under_way: dict[int, tuple[int, float]] = {}  # by storage: which collective writes it, and until when
    exposed: dict[int, float] = {}

    def wait_for(index: int, until: float) -> None:
        nonlocal now
        exposed[index] += max(0.0, until - now)
        now = max(now, until)

    for op, us in zip(ops, times_us, strict=True):
        for use in chain(op.inputs, op.outputs) if under_way and _works(op) else ():
            if (found := under_way.pop(use.storage, None)) is not None:
                wait_for(*found)
        if op.exchange is None:
            now += us
            continue
        free = max(now, free) + us
        exposed[op.index] = 0.0
        if op.exchange.is_beside:
            written = {*op.writes, *(use.storage for use in op.outputs)}
            under_way.update(dict.fromkeys(written, (op.index, free)))
        else:
            wait_for(op.index, free)
    for index, until in sorted(under_way.values()):
        wait_for(index, until)
    yield from exposed.items()


def _works(op: Op) -> bool:
    """Whether it needs what it takes to be there; a view does not."""
    return op.exchange is not None or op.base_name == WAIT or bool(launches(op))
