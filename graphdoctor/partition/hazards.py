"""A recording and the hits of its rules in, what each iteration has to keep out of a graph out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphdoctor.model import Location
from graphdoctor.partition.dependencies import is_host_read
from graphdoctor.partition.signature import Signatures, input_signature
from graphdoctor.recording import Iteration, Op, Recording
from graphdoctor.rule import Hit
from graphdoctor.rules.scalars_differ import ScalarsDiffer
from graphdoctor.rules.shapes_differ import ShapesDiffer

_Key = tuple[str, Location | None, str, str, int]
_Rules = dict[str, None]  # an ordered set

# Copies to the device tell the host nothing: they may move where data allows it.
_CAPTURE_FAILS = "GD1"
_COPIES_TO_DEVICE = frozenset({"GD104", "GD105"})
_ONLY_SLOW = "GD3"


@dataclass(frozen=True, slots=True)
class Hazards:
    """What stands in the way in one iteration, with the rules that say so.

    `blocked` are operators, by position; `cuts` are what the host does between operators, by the
    position that it comes before. After a `decisive` operator the host does what it read.
    """

    blocked: Mapping[int, tuple[str, ...]]
    cuts: Mapping[int, tuple[str, ...]]
    decisive: frozenset[int]


def cutting(hits: Iterable[tuple[str, Hit]]) -> tuple[tuple[str, Hit], ...]:
    """Without those that only make a replay slow, which the number of their rule tells."""
    return tuple((rule, hit) for rule, hit in hits if not rule.startswith(_ONLY_SLOW))


def hazards(
    recording: Recording, hits: Iterable[tuple[str, Hit]], signatures: Signatures
) -> tuple[Hazards, ...]:
    """The hazards of each captured iteration, in order.

    What is blocked in one iteration is blocked in all, so that they have their regions in common. A
    rule names the first operator of a kind that differs between iterations; what differs in its
    wake, with inputs of the same shapes, is frozen wrongly just as well and is blocked here.
    """
    keys = {iteration.index: _keys(iteration.ops) for iteration in recording.captured}
    blocked: dict[_Key, _Rules] = defaultdict(dict)
    cuts: dict[_Key | None, _Rules] = defaultdict(dict)
    for rule, hit in hits:
        of_iteration = keys[hit.iteration]
        if not hit.between:
            blocked[of_iteration[hit.op_index]][rule] = None
        elif hit.op_index < len(of_iteration):
            cuts[of_iteration[hit.op_index]][rule] = None
        else:
            cuts[None][rule] = None
    for key, rule in _differing(recording.captured, keys, signatures):
        if key not in blocked:
            blocked[key][rule] = None
    return tuple(_placed(each, keys[each.index], blocked, cuts) for each in recording.captured)


def _placed(
    iteration: Iteration,
    keys: Sequence[_Key],
    blocked: Mapping[_Key, _Rules],
    cuts: Mapping[_Key | None, _Rules],
) -> Hazards:
    here = {place: tuple(blocked[key]) for place, key in enumerate(keys) if key in blocked}
    between = {place: tuple(cuts[key]) for place, key in enumerate(keys) if key in cuts}
    if None in cuts:
        between[len(keys)] = tuple(cuts[None])
    decisive = frozenset(
        place
        for place, op in enumerate(iteration.ops)
        if any(map(_tells_the_host, here.get(place, ())))
        or (is_host_read(op) and (place in here or not op.is_cuda))
    )
    return Hazards(here, between, decisive)


def _tells_the_host(rule: str) -> bool:
    return rule.startswith(_CAPTURE_FAILS) and rule not in _COPIES_TO_DEVICE


def _keys(ops: Sequence[Op]) -> list[_Key]:
    """What makes operators of different iterations the same one: the call, and the how-manieth."""
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
