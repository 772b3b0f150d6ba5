"""Finds what each operator must come after, and what each iteration has to keep out of a graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphdoctor.operators import host_learns
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.rule import Hit
from graphdoctor.rules.scalars_differ import ScalarsDiffer
from graphdoctor.rules.shapes_differ import ShapesDiffer
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Arg, Iteration, Leaf, Op, Opaque, Recording, TensorUse

Value = tuple[int, int, tuple[int, ...], tuple[int, ...], str]


def predecessors(ops: Sequence[Op]) -> list[frozenset[int]]:
    """For each position, the earlier positions that it depends on directly.

    A reader depends on the last writer of the memory, a writer also on the readers since then, and
    random operators on each other, because they draw from one generator. Host reads, which hold
    back all that follows, are not in here (`is_host_read`). The edges are linear in the arguments.
    """
    ledger = _Ledger()
    return [ledger.enter(position, op) for position, op in enumerate(ops)]


def is_host_read(op: Op) -> bool:
    """Whether the host learns a value, or a shape, from the operator and may act on it.

    It goes on as the value says: what it does then cannot move before.
    """
    return bool(host_learns(op)) or (
        not _ends_on_device(op) and any(use.is_cuda for use in op.inputs)
    )


def _ends_on_device(op: Op) -> bool:
    """Whether nothing that it makes or changes is memory of the host."""
    changed = [use for use in op.inputs if use.storage in op.writes] if op.writes else ()
    return all([use.is_cuda for use in (*op.outputs, *changed)])


class _Ledger:
    """Who wrote, read and made what so far, by position."""

    def __init__(self) -> None:
        self._writer: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        self._maker: dict[Value, int] = {}
        self._random: int | None = None

    def enter(self, position: int, op: Op) -> frozenset[int]:
        found: set[int] = set()
        self._enter_inputs(position, op, found)
        for storage in op.writes:
            self._enter_write(position, storage, found)
        inputs = {use.storage for use in op.inputs}
        for use in op.outputs:
            if use.storage not in inputs:
                self._enter_write(position, use.storage, found)
            self._maker[value_of(use)] = position
        if op.may_draw:
            if self._random is not None:
                found.add(self._random)
            self._random = position
        found.discard(position)
        return frozenset(found)

    def _enter_inputs(self, position: int, op: Op, found: set[int]) -> None:
        is_view = op.is_view
        for use in op.inputs:
            maker = self._maker.get(value_of(use))
            if maker is not None:
                found.add(maker)
            if is_view and maker is not None:
                continue  # a view does not look at the values: writes and it may change places
            if use.storage in self._writer:
                found.add(self._writer[use.storage])
            if not is_view:
                self._readers.setdefault(use.storage, []).append(position)

    def _enter_write(self, position: int, storage: int, found: set[int]) -> None:
        found.update(
            self._readers.pop(storage, ())
        )  # a writer reads too: it is after the last write
        self._writer[storage] = position


def value_of(use: TensorUse) -> Value:
    """Equal for two uses of the same elements in the same order."""
    return use.storage, use.offset, use.shape, use.stride, use.dtype


_Key = tuple[str, Location | None, str, str, int]
_Rules = dict[str, None]  # an ordered set

_ONLY_SLOW = frozenset(rule.id for rule in ALL_RULES if rule.effect == "replay-is-slow")
_TELLS_THE_HOST = frozenset(
    rule.id for rule in ALL_RULES if rule.effect == "capture-fails" and not rule.only_feeds_device
)


@dataclass(frozen=True, slots=True)
class Hazards:
    """What stands in the way in one iteration, with the rules that say so.

    `hit` are operators, by position; `cuts` are what the host does between operators, by the
    position that it comes before. `followers` differ between iterations because a hit one does, and
    have no finding of their own. After a `decisive` operator the host acts on what it read.
    """

    hit: Mapping[int, tuple[str, ...]]
    cuts: Mapping[int, tuple[str, ...]]
    followers: Mapping[int, str]
    decisive: frozenset[int]

    def blocks(self, position: int) -> bool:
        """Whether the operator must stay out of a graph."""
        return position in self.hit or position in self.followers


def cutting(hits: Iterable[tuple[str, Hit]]) -> tuple[tuple[str, Hit], ...]:
    """Without those that only make a replay slow."""
    return tuple((rule, hit) for rule, hit in hits if rule not in _ONLY_SLOW)


def hazards(
    recording: Recording, hits: Iterable[tuple[str, Hit]], signatures: Signatures
) -> tuple[Hazards, ...]:
    """The hazards of each captured iteration, in order.

    What is blocked in one iteration is blocked in all, so that they have their regions in common. A
    rule names the first operator of a kind that differs between iterations; what differs in its
    wake, with inputs of the same shapes, is frozen wrongly just as well and is blocked here.
    """
    keys = {iteration.index: _keys(iteration.ops) for iteration in recording.captured}
    hit_rules: dict[_Key, _Rules] = defaultdict(dict)
    cuts: dict[_Key | None, _Rules] = defaultdict(dict)
    for rule, hit in hits:
        of_iteration = keys[hit.iteration]
        if not hit.between:
            hit_rules[of_iteration[hit.op_index]][rule] = None
        elif hit.op_index < len(of_iteration):
            cuts[of_iteration[hit.op_index]][rule] = None
        else:
            cuts[None][rule] = None
    followers = dict(_differing(recording.captured, keys, signatures))
    found = []
    for iteration in recording.captured:
        places = list(enumerate(keys[iteration.index]))
        stopped = {at: tuple(hit_rules[key]) for at, key in places if key in hit_rules}
        cut = {at: tuple(cuts[key]) for at, key in places if key in cuts}
        if None in cuts:
            cut[len(places)] = tuple(cuts[None])
        following = {
            at: followers[key] for at, key in places if key in followers and at not in stopped
        }
        decisive = frozenset(
            at
            for at, op in enumerate(iteration.ops)
            if not _TELLS_THE_HOST.isdisjoint(stopped.get(at, ()))
            or (is_host_read(op) and (at in stopped or not op.is_cuda))
        )
        found.append(Hazards(stopped, cut, following, decisive))
    return tuple(found)


def _keys(ops: Sequence[Op]) -> list[_Key]:
    """What makes operators of different iterations the same one: the call, and its ordinal among equal ones."""
    counts: Counter[tuple[str, Location | None, str, str]] = Counter()
    keys: list[_Key] = []
    for op in ops:
        call = (op.name, op.location, op.module, op.phase)
        keys.append((*call, counts[call]))
        counts[call] += 1
    return keys


def _differing(
    iterations: Iterable[Iteration], keys: Mapping[int, Sequence[_Key]], signatures: Signatures
) -> Iterable[tuple[_Key, str]]:
    """Device operators whose shapes or scalars differ although the inputs' shapes do not."""
    first: dict[object, dict[_Key, tuple[int, Op]]] = defaultdict(dict)
    for iteration in iterations:
        known = first[input_signature(iteration)]
        signed = zip(iteration.ops, keys[iteration.index], signatures.of(iteration), strict=True)
        for op, key, signature in signed:
            other, before = known.setdefault(key, (signature, op))
            if other != signature and op.is_cuda:
                same = [use.shape for use in before.inputs] == [use.shape for use in op.inputs]
                yield key, ScalarsDiffer.id if same else ShapesDiffer.id


class Signatures:
    """Numbers the calls of a recording by name, module, shapes, dtypes, devices and scalars."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: dict[int, tuple[int, ...]] = {}

    def of(self, iteration: Iteration) -> tuple[int, ...]:
        """The number of each operator of the iteration, by position."""
        if iteration.index not in self._known:
            self._known[iteration.index] = tuple(map(self._number, iteration.ops))
        return self._known[iteration.index]

    def _number(self, op: Op) -> int:
        kwargs = tuple((name, _form(arg)) for name, arg in op.kwargs)
        signature = (op.name, op.module, _form(op.args), kwargs)
        return self._numbers.setdefault(signature, len(self._numbers))


def input_signature(iteration: Iteration) -> tuple[object, ...]:
    """What has to be equal for two iterations to be expected to run the same graph."""
    return tuple(map(_leaf_form, iteration.inputs))


def _leaf_form(leaf: Leaf) -> object:
    return leaf.path if isinstance(leaf.value, str) else (leaf.path, _form(leaf.value))


def _form(arg: Arg) -> object:
    if isinstance(arg, TensorUse):
        return arg.shape, arg.dtype, arg.device
    if isinstance(arg, tuple):
        return tuple(map(_form, arg))
    if isinstance(arg, Opaque):
        return arg.text if " at 0x" not in arg.text else ""  # an address is not a difference
    return type(arg), repr(arg)  # -0.0 and 0, 1 and True are different, nan is equal to itself
