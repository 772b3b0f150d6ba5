"""One iteration and where it must be cut -> the slot of each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdoctor.estimate import launches
from graphdoctor.partition.hazards import Hazards, predecessors
from graphdoctor.values.recording import Op

_BEFORE_ALL = -1


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots run in rising order: even ones are captured, odd ones (from -1) run as they do today.

    `slots` and `launches` go by position, and within a slot the recorded order is kept. `after` are
    the earlier positions that each one depends on, the last decisive one included. `cuts` are the
    slots of what the host does between operators, by the position that it comes before.
    """

    slots: tuple[int, ...]
    launches: tuple[int, ...]
    after: tuple[frozenset[int], ...]
    cuts: Mapping[int, int]

    @property
    def order(self) -> tuple[int, ...]:
        """All positions in the order in which the slots run them."""
        return tuple(sorted(range(len(self.slots)), key=self.slots.__getitem__))


def schedule(ops: Sequence[Op], hazards: Hazards) -> Schedule:
    """Give every operator the earliest slot that its dependencies allow.

    So an operator that cannot be captured moves out of the way when nothing hinders it: a copy of
    host data goes before everything, what only the caller needs goes after. Where the host learns
    something, or waits, all that was recorded before stays before and all after stays after.
    """
    counts = tuple(map(launches, ops))
    before = predecessors(ops)
    read: int | None = None
    slots: list[int] = []
    cut_slots: dict[int, int] = {}
    floor = latest = _BEFORE_ALL  # what later operators may not go before; the latest slot so far
    for position, op in enumerate(ops):
        if read is not None:
            before[position] |= {read}
        if position in hazards.cuts:
            floor = latest = cut_slots[position] = _odd(latest)
        slot = max((slots[earlier] for earlier in before[position]), default=_BEFORE_ALL)
        if position in hazards.decisive and op.is_cuda:
            slot = latest
        runs_as_today = hazards.blocks(position) or not op.is_cuda
        slot = max(slot, floor)
        slots.append(_odd(slot) if runs_as_today else slot + slot % 2 if counts[position] else slot)
        latest = max(latest, slots[-1])
        if position in hazards.decisive:
            read, floor = position, slots[-1]
    if len(ops) in hazards.cuts:
        cut_slots[len(ops)] = _odd(latest)
    is_free = [
        op.is_cuda and not counts[position] and not hazards.blocks(position)
        for position, op in enumerate(ops)
    ]
    _settle_free_operators(slots, before, is_free)
    return Schedule(tuple(slots), counts, tuple(before), cut_slots)


def _odd(slot: int) -> int:
    return slot if slot % 2 else slot + 1


def _settle_free_operators(
    slots: list[int], before: Sequence[frozenset[int]], is_free: Sequence[bool]
) -> None:
    """Views and allocations go into a region where they can, best that of their neighbours."""
    needed: dict[int, int] = {}  # the earliest slot that uses each one
    for position in range(len(slots) - 1, -1, -1):
        if is_free[position]:
            around = [*slots[position + 1 : position + 2], *slots[max(position - 1, 0) : position]]
            low = slots[position]
            high = needed.get(position, max((low, *around)))
            possible = (slot for slot in (*around, high) if slot % 2 == 0 and low <= slot <= high)
            slots[position] = next(possible, low)
        for earlier in before[position]:
            needed[earlier] = min(needed.get(earlier, slots[position]), slots[position])
