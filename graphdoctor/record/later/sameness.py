"""Two runs of a step -> whether the second is the first one again, in all that a graph keeps and steps leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from graphdoctor.values.recording import Arg, External, Leaf, Op, TensorUse

Event = tuple[int, str, str]  # before which operator, of which kind, and what


class StepRun(NamedTuple):
    """What a run of the step did, as far as runs are compared.

    `state` names the memory of the state, by its number. `events` are what the host did between operators; a
    recorded run has none.
    """

    ops: Sequence[Op]
    state: Mapping[int, str]
    events: Sequence[Event] = ()
    outputs: Sequence[Leaf] = ()


def state_of(externals: Iterable[External]) -> dict[int, str]:
    """The names of the state's memory among what a run took from outside."""
    return {one.storage: one.name for one in externals if one.origin == "state"}


def first_difference(usual: StepRun, other: StepRun) -> Op | None:
    """The first operator that is another one, takes another tensor, or is one too many.

    Where other tensors or numbers are returned it is the last one.
    """
    memory = _Memory()
    for one, two in zip(usual.ops, other.ops, strict=False):
        if signature(one, usual.state) != signature(two, other.state):
            return two
        if not memory.is_same((*one.inputs, *one.outputs), (*two.inputs, *two.outputs)):
            return two
    if len(usual.ops) != len(other.ops):
        longer = max(usual.ops, other.ops, key=len)
        return longer[min(len(usual.ops), len(other.ops))]
    if usual.events != other.events:
        differing = (b for a, b in zip_longest(usual.events, other.events) if a != b)
        at, *_ = next(differing) or usual.events[-1]
        return other.ops[min(at, len(other.ops) - 1)] if other.ops else None
    if list(map(_plain, usual.outputs)) == list(map(_plain, other.outputs)) and memory.is_same(
        _tensors(usual.outputs), _tensors(other.outputs)
    ):
        return None
    return other.ops[-1] if other.ops else None


class _Memory:
    """Pairs the memory of two runs, which has another number in each, in the order in which they meet it."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}

    def is_same(self, here: Sequence[TensorUse], there: Sequence[TensorUse]) -> bool:
        pairs = ((one.storage, two.storage) for one, two in zip(here, there, strict=False))
        return all(
            self._there.setdefault(one, two) == two and self._here.setdefault(two, one) == one
            for one, two in pairs
        )


def _plain(leaf: Leaf) -> tuple[str, str | None]:
    is_told = isinstance(leaf.value, str) and " at 0x" not in leaf.value  # where an object lies
    return leaf.path, leaf.value if is_told else None  # type: ignore[return-value]


def _tensors(leaves: Sequence[Leaf]) -> list[TensorUse]:
    return [leaf.value for leaf in leaves if isinstance(leaf.value, TensorUse)]


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
        tuple(map(frozen, op.args)),
        tuple((name, frozen(value)) for name, value in op.kwargs),
        tuple(map(frozen, op.outputs)),
    )


def all_match(runs: Sequence[StepRun]) -> bool:
    """Whether no recorded step differs from the first: else that is a finding already."""
    return all(first_difference(runs[0], other) is None for other in runs[1:])
