"""Two runs of a step -> whether the second is the first one again, in all that a graph keeps and steps leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import zip_longest
from typing import NamedTuple

from graphdoctor.values.recording import Arg, External, Leaf, Op, TensorUse

Event = tuple[int, str, str]  # before which operator, of which kind, and what


class Ran(NamedTuple):
    """What a run did; `state` names the memory of the state, by its number.

    `switches` are those by which kernels were chosen, at each operator, `events` what the host did between them,
    and `changed` the state that it changed, of steps in a row; nothing of a recorded run.
    """

    ops: Sequence[Op]
    state: Mapping[int, str]
    switches: Sequence[object] = ()
    events: Sequence[Event] = ()
    changed: Set[str] = frozenset()
    outputs: Sequence[Leaf] = ()


def ran(
    ops: Sequence[Op],
    externals: Iterable[External],
    switches: Sequence[object] = (),
    events: Sequence[Event] = (),
) -> Ran:
    """What was recorded of a run, as far as it is compared."""
    state = {one.storage: one.name for one in externals if one.origin == "state"}
    return Ran(ops, state, switches, events)


def is_the_same(usual: Ran, other: Ran) -> bool:
    """Whether it also reads and returns the same of its tensors, and changes no other state.

    What it changes may be what the steps after it decide by.
    """
    if first_difference(usual, other) is not None or not other.changed <= usual.changed:
        return False
    if [leaf.path for leaf in usual.outputs] != [leaf.path for leaf in other.outputs]:
        return False
    pairs, back = dict[int, int](), dict[int, int]()
    for one, two in zip(_uses(usual), _uses(other), strict=False):
        if pairs.setdefault(one.storage, two.storage) != two.storage:
            return False
        if back.setdefault(two.storage, one.storage) != one.storage:
            return False
    return True


def _uses(ran: Ran) -> Iterator[TensorUse]:
    """Tensors in the order in which they are met: memory has another number in each run."""
    for op in ran.ops:
        yield from op.inputs
        yield from op.outputs
    yield from (leaf.value for leaf in ran.outputs if isinstance(leaf.value, TensorUse))


def first_difference(usual: Ran, other: Ran) -> Op | None:
    """The first operator that is another one, or one too many."""
    for one, two in zip(usual.ops, other.ops, strict=False):
        if signature(one, usual.state) != signature(two, other.state):
            return two
    for two, here, there in zip(other.ops, usual.switches, other.switches, strict=False):
        if here != there:
            return two
    if len(usual.ops) == len(other.ops):
        if usual.events == other.events:
            return None
        differing = (b for a, b in zip_longest(usual.events, other.events) if a != b)
        at, *_ = next(differing) or usual.events[-1]
        return other.ops[min(at, len(other.ops) - 1)] if other.ops else None
    longer = max(usual.ops, other.ops, key=len)
    return longer[min(len(usual.ops), len(other.ops))]


def signature(op: Op, state: Mapping[int, str]) -> tuple[object, ...]:
    """What a graph freezes of an operator; of addresses those of the state alone, by its names."""

    def frozen(value: Arg) -> object:
        if isinstance(value, TensorUse):
            name = state.get(value.storage, "")
            return name, value.shape, value.stride, value.offset, value.dtype, value.device
        if isinstance(value, tuple):
            return tuple(map(frozen, value))
        return repr(value)  # NaN is like NaN

    return (
        op.name,
        op.location,
        tuple(map(frozen, op.args)),
        tuple((name, frozen(value)) for name, value in op.kwargs),
        tuple(map(frozen, op.outputs)),
    )


def are_alike(runs: Sequence[Ran]) -> bool:
    """Whether no recorded step differs from the first: else that is a finding already."""
    return all(first_difference(runs[0], other) is None for other in runs[1:])
