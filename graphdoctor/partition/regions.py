"""Schedules iterations around their cuts, and finds the regions in common and the modules inside."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase

from graphdoctor.estimate import launches, saving_us
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.timeline import copy_pieces
from graphdoctor.partition.hazards import Hazards, predecessors
from graphdoctor.values.captures import Region
from graphdoctor.values.figures import Range, count_text
from graphdoctor.values.locations import file_line
from graphdoctor.values.recording import Iteration, Op, TensorUse

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


@dataclass(frozen=True)
class PlannedRegion:
    """A region and where it lies: for each iteration that runs it, the indices of its operators.

    The indices rise; gaps are operators that move out of the region's way.
    """

    region: Region
    spans: tuple[tuple[int, tuple[int, ...]], ...]

    def ops_in(self, iteration: int) -> tuple[int, ...]:
        """Its operators in the iteration of this index; none if the iteration does not run it."""
        return dict(self.spans).get(iteration, ())


@dataclass(frozen=True)
class Plan:
    """Which operators of the captured iterations can become graphs.

    `whole`: nothing stands in the way and one region holds all device operators of every
    iteration. `safe_modules` are paths of modules that could be captured by themselves.
    """

    regions: tuple[PlannedRegion, ...]
    safe_modules: tuple[str, ...]
    whole: bool


FEWEST_LAUNCHES = 10  # below this, launching the graph costs about what it saves

_Key = tuple[int, int]  # a signature's number, and how often the iteration had it before


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of one iteration, before it is known to be one that other iterations have too."""

    iteration: Iteration
    ops: tuple[Op, ...]
    launches: tuple[int, ...]  # of each operator
    signature: tuple[int, ...]
    blocked_by: tuple[str, ...]
    moved: tuple[Op, ...]  # blocked operators between its own, which run before or after it


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a region's description needs to know of the whole step.

    `forward_work` goes by iteration; `lasting` are the storages that stay where they are.
    """

    forward_work: Mapping[int, Counter[str]]
    lasting: frozenset[int]


def lasting_storages(iterations: Iterable[Iteration]) -> frozenset[int]:
    """State, and what one iteration leaves for the next ones in the same place."""
    found: set[int] = set()
    met: set[int] = set()
    for iteration in iterations:
        kept = {each.storage for each in iteration.externals if each.origin != "input"}
        found |= {each.storage for each in iteration.externals if each.origin == "state"}
        found |= met & kept
        met |= kept
    return frozenset(found)


def pieces(
    iteration: Iteration, plan: Schedule, hazards: Hazards, *, signatures: Sequence[int]
) -> Iterator[Piece]:
    """The even slots of a schedule that launch something."""
    rules = rules_by_slot(plan, hazards)
    slots: dict[int, list[int]] = {}
    for position in plan.order:
        if plan.slots[position] % 2 == 0:
            slots.setdefault(plan.slots[position], []).append(position)
    for slot, positions in slots.items():
        counts = tuple(plan.launches[position] for position in positions)
        if any(counts):
            ops = tuple(iteration.ops[position] for position in positions)
            reasons = (*rules.get(slot - 1, ()), *rules.get(slot + 1, ()))
            signed = tuple(signatures[position] for position in positions)
            moved = tuple(
                iteration.ops[position]
                for position in range(positions[0], positions[-1])
                if hazards.blocks(position)
            )
            yield Piece(iteration, ops, counts, signed, tuple(dict.fromkeys(reasons)), moved)


def rules_by_slot(plan: Schedule, hazards: Hazards) -> dict[int, list[str]]:
    """Which rules keep the operators, or the host's actions, of each odd slot out of a region.

    What only follows from a hit elsewhere is put down to the hits before it.
    """
    found: dict[int, list[str]] = defaultdict(list)
    for position, rules in sorted(hazards.hit.items()):
        found[plan.slots[position]] += rules
    for position, rules in sorted(hazards.cuts.items()):
        found[plan.cuts[position]] += rules
    for position, rule in sorted(hazards.followers.items()):
        slot = plan.slots[position]
        if slot not in found:
            before = max((other for other in found if other < slot), default=None)
            found[slot] = [rule] if before is None else [*found[before]]
    return found


def unified(found: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """The pieces of all iterations, equal ones together, in execution order.

    A piece that only some iterations run comes right before what follows it there, so that the
    branch seen first comes first. A piece that one iteration runs twice is two regions.
    """
    # From the last region to the first: a linked list that None begins and ends.
    preceding: dict[_Key | None, _Key | None] = {None: None}
    members: dict[_Key, list[Piece]] = {}
    numbers: dict[tuple[int, ...], int] = {}
    for of_iteration in found:
        counts: Counter[int] = Counter()
        later: _Key | None = None
        for piece in reversed(of_iteration):
            signature = numbers.setdefault(piece.signature, len(numbers))
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


def described(
    members: Sequence[Piece], name: str, *, surroundings: Surroundings, profile: DeviceProfile
) -> PlannedRegion:
    """One region, by the operators of its first piece."""
    first = members[0]
    kernels = [op for op, count in zip(first.ops, first.launches, strict=True) if count]
    count = sum(first.launches)
    totals = surroundings.forward_work[first.iteration.index]
    saving, copies = _net_saving_us(first, surroundings.lasting, profile)
    worthwhile, reason = _judged(first, saving, copies)
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
    spans = tuple((piece.iteration.index, tuple(op.index for op in piece.ops)) for piece in members)
    return PlannedRegion(region, spans)


def _judged(piece: Piece, saving: Range, copies: int) -> tuple[bool, str]:
    count = sum(piece.launches)
    launched = count_text(count, "launch")
    if count < FEWEST_LAUNCHES:
        return False, f"too small to pay: {launched}, fewer than {FEWEST_LAUNCHES}"
    if saving.mid <= 0:
        copied = f" and copying {count_text(copies, 'input')}" if copies else ""
        return False, f"too small to pay: launching a graph{copied} costs more than {launched}"
    return True, f"{launched} become one{_condition(piece.moved)}"


def _condition(moved: Sequence[Op]) -> str:
    """What has to change in the code first: a graph holds a stretch of it, without gaps."""
    if not moved:
        return ""
    place = moved[0].location
    where = f" of {file_line(place)}" if place is not None else ""
    others = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    return f" once {moved[0].name}{where}{others}, which can run before or after, is moved out"


def _net_saving_us(
    piece: Piece, lasting: Collection[int], profile: DeviceProfile
) -> tuple[Range, int]:
    """What one replay saves once its moving inputs are copied in, and how many inputs that are."""
    inputs = list(_moving_inputs(piece, lasting))
    costs = [(copy.host_us, copy.device_us) for copy in copy_pieces(inputs, profile)]
    gross = saving_us(piece.ops, profile)
    low = sum(max(host.low, device.low) for host, device in costs)
    mid = sum(max(host.mid, device.mid) for host, device in costs)
    high = sum(max(host.high, device.high) for host, device in costs)
    return Range(gross.low - high, gross.mid - mid, gross.high - low), len(costs)


def _moving_inputs(piece: Piece, lasting: Collection[int]) -> Iterator[TensorUse]:
    """One use of each storage on the device that is read and that the graph cannot find again."""
    still = set(lasting)
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


def covered(inside: Counter[str], totals: Counter[str]) -> tuple[str, ...]:
    """The outermost modules whose whole `forward_work` is inside."""
    whole = {path for path, count in inside.items() if count == totals[path]}
    return tuple(_outermost(inside, whole))


def forward_work(kernels: Iterable[Op]) -> Counter[str]:
    """How many of these operators the forward pass of each module has, its submodules' included."""
    own = Counter(op.module for op in kernels if op.phase == "forward")
    total: Counter[str] = Counter()
    for module, count in own.items():
        for path in _with_parents(module):
            total[path] += count
    return total


def safe_modules(work: Iterable[Counter[str]], unsafe: Iterable[str]) -> tuple[str, ...]:
    """The outermost modules that did forward work in some iteration and hold nothing unsafe."""
    ran = dict.fromkeys(path for counted in work for path in counted)
    excluded = {path for module in unsafe for path in _with_parents(module)}
    return tuple(_outermost(ran, ran.keys() - excluded))


def _outermost(paths: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
    """The wanted paths that no wanted path contains, in the given order."""
    for path in paths:
        parents = list(_with_parents(path))[1:]
        if path in wanted and not any(parent in wanted for parent in parents):
            yield path


def _with_parents(module: str) -> Iterator[str]:
    """The path itself and those of the modules around it, up to but without the nameless root."""
    while module:
        yield module
        module = module.rpartition(".")[0]
