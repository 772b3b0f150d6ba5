"""Estimates how long the data of a collective are on the way, and how much of that other work hides.

Data go round a ring, as NCCL sends them: each rank passes on parts of what it has, over the links of one host. How long
ranks wait for one that comes late is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import astuple

from graphdoctor.estimate.gpus import LEVELS, DeviceProfile, Figure, Network
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.ranges import divide
from graphdoctor.values.figures import Range, count_text, time_text
from graphdoctor.values.recording import Op, tensors_in
from graphdoctor.values.speed import Term

WAIT = "wait_tensor"  # of functional collectives
_ALL_REDUCES = ("allreduce", "all_reduce")
# Each rank has or gets one part of what moves, and the others' parts pass it by.
_OF_PARTS = (
    "allgather", "_allgather", "all_gather", "reduce_scatter", "_reduce_scatter", "alltoall", "all_to_all",
    "gather", "scatter",
)  # fmt: skip


def network_us(op: Op, profile: DeviceProfile) -> Range:
    """From when the last rank has come to it, with nothing beside it."""
    assert op.exchange is not None
    if op.exchange.ranks == 1:
        return profile.smallest_kernel_us.stream.range
    figures, ranks = profile.network, op.exchange.ranks
    rounds, large = 1, figures.share
    sent = float(moved_bytes(op))
    if op.base_name.startswith(_ALL_REDUCES):
        rounds, sent = 2, sent * 2 * (ranks - 1) / ranks
    elif op.base_name.startswith(_OF_PARTS):
        large, sent = figures.parts_share, sent * (ranks - 1) / ranks
    passed_on = figures.hop_us.range * (rounds * (ranks - 2))
    in_small_parts = _sent_us(sent, figures, figures.latency_us, figures.small_share)
    in_large_parts = _sent_us(sent, figures, figures.setup_us, large)
    shorter = map(min, zip(astuple(in_small_parts), astuple(in_large_parts), strict=True))
    return passed_on + Range(*shorter)


def network_terms(ops: Sequence[Op], profile: DeviceProfile) -> Iterator[Term]:
    """The figure that decides what collectives take."""
    if _exchanges(ops):
        link = profile.network.link_gb_s
        bounds = "" if link.low == link.high else f" ({link.low:g} to {link.high:g})"
        yield Term("links of one GPU to the others", f"{link.mid:g}{bounds} GB/s", link.source)


def network_notes(
    ops: Sequence[Op], device_us: Callable[[Op], Range], profile: DeviceProfile
) -> Iterator[str]:
    """What the collectives take, and what of it makes the step longer."""
    exchanges = _exchanges(ops)
    if not exchanges:
        return
    ranks = sorted({op.exchange.ranks for op in exchanges if op.exchange is not None})
    between = f"{ranks[-1]} GPUs" if len(ranks) == 1 else f"up to {ranks[-1]} GPUs"
    alone = sum(device_us(op).mid for op in exchanges)
    longer = sum(us.mid for us in exposed_us(ops, device_us, profile).values())
    yield (
        f"{count_text(len(exchanges), 'collective')} between {between}, taken to be of one host:"
        f" {time_text(alone)} on the network, of which {time_text(longer)} make the device's step longer;"
        " other work hides the rest."
    )


def _exchanges(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.exchange is not None and op.exchange.ranks > 1]


def _sent_us(sent: float, figures: Network, before: Figure, share: Figure) -> Range:
    rate = figures.link_gb_s.range * share.range
    return before.range + divide(sent / 1e3, rate)


def moved_bytes(op: Op) -> int:
    """Of the side that has all of it."""
    sides = [tensors_in((arg,)) for arg in (*op.args, op.outputs)]
    return max((sum(use.nbytes for use in side) for side in sides), default=0)


def exposed_us(
    ops: Sequence[Op], device_us: Callable[[Op], Range], profile: DeviceProfile
) -> dict[int, Range]:
    """By how much each collective, by its operator's index, makes the device's step longer.

    Collectives run one after the other. What uses a result, or comes after a collective that is waited for at
    once, waits for it, and the step's end for all of them. What runs beside one takes longer.
    """
    if not any(op.exchange is not None for op in ops):
        return {}
    times = [device_us(op) for op in ops]
    ends = []
    for level in LEVELS:
        alone = {op.index: getattr(us, level) for op, us in zip(ops, times, strict=True)}
        shares = profile.network.hindrance.at(level)
        waits = _waits_us(ops, alone)
        ends.append({index: us + shares * (alone[index] - us) for index, us in waits.items()})
    return {index: Range(*sorted(end[index] for end in ends)) for index in ends[0]}


def _waits_us(ops: Sequence[Op], alone: Mapping[int, float]) -> dict[int, float]:
    """How long the rest of the device's work waits for each collective."""
    now = free = 0.0  # of the device, and of the network
    under_way: dict[
        int, tuple[int, float]
    ] = {}  # by storage: which collective writes it, and until when
    waited: dict[int, float] = {}

    def wait_for(index: int, until: float) -> None:
        nonlocal now
        waited[index] += max(0.0, until - now)
        now = max(now, until)

    for op in ops:
        for use in chain(op.inputs, op.outputs) if under_way and _works(op) else ():
            if (found := under_way.pop(use.storage, None)) is not None:
                wait_for(*found)
        if op.exchange is None:
            now += alone[op.index]
            continue
        free = max(now, free) + alone[op.index]
        waited[op.index] = 0.0
        if op.exchange.is_beside:
            written = {*op.writes, *(use.storage for use in op.outputs)}
            under_way.update(dict.fromkeys(written, (op.index, free)))
        else:
            wait_for(op.index, free)
    for found in sorted(under_way.values()):
        wait_for(*found)
    return waited


def _works(op: Op) -> bool:
    """Whether it needs what it takes to be there; a view does not."""
    return op.exchange is not None or op.base_name == WAIT or bool(launches(op))
