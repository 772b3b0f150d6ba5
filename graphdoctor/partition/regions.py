"""Schedules of the iterations in, the regions that they have in common out, named and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase

from graphdoctor.estimate import saving_us
from graphdoctor.estimate.timeline import copy_pieces
from graphdoctor.model import Range, Region
from graphdoctor.partition.modules import covered, forward_work
from graphdoctor.partition.plan import PlannedRegion
from graphdoctor.partition.schedule import Schedule
from graphdoctor.profiles import DeviceProfile
from graphdoctor.recording import Arg, Iteration, Op, Opaque, TensorUse

_FEWEST_LAUNCHES = 10  # below this, launching the graph costs about what it saves

_Key = tuple[int, int]  # a signature's number, and how often the iteration had it before


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of one iteration, before it is known to be one that other iterations have too."""

    iteration: Iteration
    ops: tuple[Op, ...]
    launches: tuple[int, ...]  # of each operator
    blocked_by: tuple[str, ...]


def pieces(
    iteration: Iteration, plan: Schedule, rules: Mapping[int, Sequence[str]]
) -> Iterator[Piece]:
    """The even slots of a schedule that launch something; `rules` has the ids for each odd slot."""
    slots: dict[int, list[int]] = {}
    for position in plan.order:
        if plan.slots[position] % 2 == 0:
            slots.setdefault(plan.slots[position], []).append(position)
    for slot, positions in slots.items():
        counts = tuple(plan.launches[position] for position in positions)
        if any(counts):
            ops = tuple(iteration.ops[position] for position in positions)
            reasons = (*rules.get(slot - 1, ()), *rules.get(slot + 1, ()))
            yield Piece(iteration, ops, counts, tuple(dict.fromkeys(reasons)))


def unified(found: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """The pieces of all iterations, equal ones together, in execution order.

    A piece that only some iterations run comes right before what follows it there, so that the
    branch seen first comes first. A piece that one iteration runs twice is two regions.
    """
    # From the last region to the first: a linked list that None begins and ends.
    preceding: dict[_Key | None, _Key | None] = {None: None}
    members: dict[_Key, list[Piece]] = {}
    numbers: dict[tuple[object, ...], int] = {}
    for of_iteration in found:
        counts: Counter[int] = Counter()
        later: _Key | None = None
        for piece in reversed(of_iteration):
            signature = numbers.setdefault(_signature(piece.ops), len(numbers))
            key = (signature, counts[signature])
            counts[signature] += 1
            if key not in members:
                members[key] = []
                preceding[key], preceding[later] = preceding[later], key
            members[key].append(piece)
            later = key
    return [members[key] for key in _walk(preceding)][::-1]


def _walk(linked: Mapping[_Key | None, _Key | None]) -> Iterator[_Key]:
    key = linked[None]
    while key is not None:
        yield key
        key = linked[key]


def _signature(ops: Sequence[Op]) -> tuple[object, ...]:
    """What makes two regions the same graph: calls, shapes, dtypes, scalars and modules."""
    return tuple(
        (
            op.name,
            op.module,
            _shape_of(op.args),
            tuple((name, _shape_of(arg)) for name, arg in op.kwargs),
        )
        for op in ops
    )


def _shape_of(arg: Arg) -> object:
    if isinstance(arg, TensorUse):
        return arg.shape, arg.dtype, arg.device
    if isinstance(arg, tuple):
        return tuple(_shape_of(each) for each in arg)
    if isinstance(arg, Opaque):
        return arg.text if " at 0x" not in arg.text else ""  # an address is not a difference
    return type(arg), repr(arg)  # -0.0 and 0, 1 and True are different, nan is equal to itself


def described(
    members: Sequence[Piece], name: str, *, totals: Counter[str], profile: DeviceProfile
) -> PlannedRegion:
    """One region, by the operators of its first piece; `totals`: the step's forward work."""
    first = members[0]
    kernels = [op for op, count in zip(first.ops, first.launches, strict=True) if count]
    count = sum(first.launches)
    saving, copies = _net_saving_us(first, profile)
    worthwhile, reason = _judged(count, saving, copies)
    lines = [op.location for op in kernels if op.location is not None]
    region = Region(
        name=name,
        operators=len(first.ops),
        launches=count,
        phases=tuple(dict.fromkeys(op.phase for op in kernels)),
        modules=covered(forward_work(kernels), totals),
        first=lines[0] if lines else None,
        last=lines[-1] if lines else None,
        blocked_by=tuple(dict.fromkeys(rule for piece in members for rule in piece.blocked_by)),
        iterations=tuple(piece.iteration.index for piece in members),
        worthwhile=worthwhile,
        reason=reason,
        saving_us=saving,
    )
    spans = tuple((piece.iteration.index, _indices(piece.ops)) for piece in members)
    return PlannedRegion(region, spans, first.iteration)


def _indices(ops: Sequence[Op]) -> tuple[int, ...]:
    return tuple(op.index for op in ops)


def _judged(count: int, saving: Range, copies: int) -> tuple[bool, str]:
    launched = f"{count} launch{'es' if count != 1 else ''}"
    if count < _FEWEST_LAUNCHES:
        return False, f"too small to pay: {launched}, fewer than {_FEWEST_LAUNCHES}"
    if saving.mid <= 0:
        copied = f" and copying {copies} input{'s' if copies != 1 else ''}" if copies else ""
        return False, f"too small to pay: launching a graph{copied} costs more than {launched}"
    return True, f"{launched} become one"


def _net_saving_us(piece: Piece, profile: DeviceProfile) -> tuple[Range, int]:
    """What one replay saves once its moving inputs are copied in, and how many inputs that are."""
    inputs = list(_moving_inputs(piece))
    costs = [(copy.host_us, copy.device_us) for copy in copy_pieces(inputs, profile)]
    gross = saving_us(piece.ops, profile)
    low = sum(max(host.low, device.low) for host, device in costs)
    mid = sum(max(host.mid, device.mid) for host, device in costs)
    high = sum(max(host.high, device.high) for host, device in costs)
    return Range(gross.low - high, gross.mid - mid, gross.high - low), len(costs)


def _moving_inputs(piece: Piece) -> Iterator[TensorUse]:
    """One use of each storage on the device that is read and whose address the graph cannot know.

    State stays where it is; inputs of the step and what is made outside the region do not.
    """
    still = {
        external.storage
        for external in piece.iteration.externals
        if external.origin in ("state", "previous-iteration")
    }
    for op in piece.ops:
        for use in op.inputs:
            if use.is_cuda and use.storage not in still:
                still.add(use.storage)
                yield use
        still.update(use.storage for use in op.outputs)


def names() -> Iterator[str]:
    """ "A" to "Z", "AA", "AB", ..."""
    length = 1
    while True:
        for letters in product(ascii_uppercase, repeat=length):
            yield "".join(letters)
        length += 1
