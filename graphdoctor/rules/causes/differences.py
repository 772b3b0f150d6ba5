"""Finds the first causes of differences between iterations, and says what a difference is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from graphdoctor.operators import host_learns
from graphdoctor.operators.conditions import has_mask_index
from graphdoctor.rules.causes.align import Pair, align
from graphdoctor.rules.causes.branch_points import Branch, Side, decision_on
from graphdoctor.rules.causes.reads import Source, sources_of
from graphdoctor.rules.rule import once
from graphdoctor.values.figures import count_text
from graphdoctor.values.recording import Arg, External, Iteration, Op, Recording, TensorUse

DifferenceKind = Literal["operators", "shapes", "scalars", "rebound", "growing", "data-dependent"]


class Change(Struct, frozen=True):
    """An argument that is no tensor, and what it was in either iteration."""

    argument: str  # "argument 2", or its name in backticks
    before: Arg
    after: Arg


class Difference(Struct):
    """A first cause. `followers` counts the differing operators that it explains."""

    kind: DifferenceKind
    before: Op | None
    after: Op | None
    changes: tuple[Change, ...] = ()
    uses: tuple[TensorUse | None, TensorUse | None] = (None, None)
    external: External | None = None
    maker: Op | None = None  # the operator of the iteration before that made it
    branch: Branch | None = None
    sure: bool = False  # the branch's body did not run at all in the other iteration
    followers: int = 0

    @property
    def following(self) -> str:
        """ " (and 3 operators after it)", "" if it explains no other."""
        return f" (and {count_text(self.followers, 'operator')} after it)" if self.followers else ""

    @property
    def op_or_none(self) -> Op | None:
        return self.after or self.before

    @property
    def op(self) -> Op:
        op = self.op_or_none
        assert op is not None
        return op

    def source_among(self, sources: Sequence[Source]) -> Source | None:
        """What the host read or drew that explains this difference."""
        for source in sources:
            if self.branch is not None and source.flow.decides(self.branch):
                return source
        ops = [op for op in (self.before, self.after) if op is not None]
        chains = [(op.location, *op.stack) for op in ops if op.location is not None]
        for source in sources:
            if any(source.flow.feeds(chain) for chain in chains):
                return source
        if self.kind == "operators":
            for source in sources:
                if any(
                    source.flow.holds(chain) or source.flow.leaves_before(chain) for chain in chains
                ):
                    return source
        return None


def is_data_dependent(op: Op) -> bool:
    """Whether the shape of an operator's result depends on values."""
    return has_mask_index(op) or bool(host_learns(op))


def shapes_of(uses: Sequence[TensorUse]) -> list[tuple[tuple[int, ...], str]]:
    return [(use.shape, use.dtype) for use in uses]


def changes_between(before: Op, after: Op) -> Iterator[Change]:
    if before.args == after.args and before.kwargs == after.kwargs:
        return
    for place, (old, new) in enumerate(zip(before.args, after.args, strict=False), start=1):
        if _differs(old, new):
            yield Change(_argument(after, place), old, new)
    named = dict(before.kwargs)
    for name, new in after.kwargs:
        if name in named and _differs(named[name], new):
            yield Change(f"`{name}`", named[name], new)


# What moves along a tensor from step to step, and which of its positional arguments say where, from the first on.
_ARGUMENTS = {
    "select": ("self", "dim", "index"),
    "slice": ("self", "dim", "start", "end", "step"),
    "select_scatter": ("self", "src", "dim", "index"),
    "slice_scatter": ("self", "src", "dim", "start", "end", "step"),
}


def _argument(op: Op, place: int) -> str:
    names = _ARGUMENTS.get(op.base_name, ())
    return f"`{names[place - 1]}`" if place <= len(names) else f"argument {place}"


def _differs(old: Arg, new: Arg) -> bool:
    """Whether numbers or texts differ: tensors are compared elsewhere, generators have no value."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        if len(old) != len(new):
            return not any(isinstance(item, TensorUse) for item in (*old, *new))
        return any(_differs(*pair) for pair in zip(old, new, strict=True))
    if isinstance(old, (bool, int, float, str)) and isinstance(new, (bool, int, float, str)):
        return old != new and not (old != old and new != new)  # two NaNs are alike
    return False


class Comparison:
    """Walks aligned operators; what differs because something before it differed is a follower."""

    def __init__(self, first: Iteration, second: Iteration, *, may_settle: bool) -> None:
        self.sides = (Side(first), Side(second))
        self.may_settle = may_settle
        self.found: list[Difference] = []
        self.by_storage: tuple[dict[int, Difference], dict[int, Difference]] = ({}, {})
        self.by_index: tuple[dict[int, Difference], dict[int, Difference]] = ({}, {})
        self.sizes: dict[tuple[Arg, Arg], Difference] = {}
        self.rebound: set[int] = set()
        self.run_cause: Difference | None = None
        self.run_phase = ""

    def run(self, pairs: Sequence[Pair]) -> list[Difference]:
        for first, second in pairs:
            ops = self.sides[0].op(first), self.sides[1].op(second)
            if ops[0] is None or ops[1] is None:
                self._unmatched(*ops)
            else:
                self.run_cause = None
                self._matched(ops[0], ops[1])
        return self.found

    # ---- operators that only one iteration ran

    def _unmatched(self, before: Op | None, after: Op | None) -> None:
        side, op = (0, before) if before is not None else (1, after)
        assert op is not None
        if self.run_cause is not None and self.run_phase == op.phase:
            cause = self.run_cause
            cause.followers += 1
        else:
            cause = self._cause_of_unmatched(side, op)
        if cause.kind == "operators":
            self._complete(cause, side, op)
        self.run_cause, self.run_phase = cause, op.phase
        self._mark(side, op, cause)

    def _cause_of_unmatched(self, side: int, op: Op) -> Difference:
        """A branch that is known for sure, else what it follows from, else a cause of its own."""
        decision = decision_on(op, other=self.sides[1 - side])
        cause = None
        if decision.branch is not None:
            cause = next((each for each in self.found if each.branch == decision.branch), None)
        if cause is None and not decision.sure:
            cause = self._inherited(side, op) or self._consequence(op)
        if cause is None:
            new = Difference("operators", None, None, branch=decision.branch, sure=decision.sure)
            self.found.append(new)
            return new
        cause.followers += 1
        return cause

    def _complete(self, cause: Difference, side: int, op: Op) -> None:
        """Keep the first operator of either side; the second may know the branch better."""
        if (cause.before, cause.after)[side] is not None:
            return
        if cause.op_or_none is not None and not cause.sure:
            decision = decision_on(op, other=self.sides[1 - side])
            if decision.sure or cause.branch is None:
                cause.branch, cause.sure = decision.branch, decision.sure
        if side == 0:
            cause.before = op
        else:
            cause.after = op

    def _consequence(self, op: Op) -> Difference | None:
        """Backward and optimizer follow the forward: they differ because it did."""
        if op.phase == "forward":
            return None
        causes = [cause for cause in self.found if cause.kind in ("operators", "data-dependent")]
        return causes[-1] if causes else None

    # ---- the same operator in both

    def _matched(self, before: Op, after: Op) -> None:
        shapes = shapes_of(before.inputs) != shapes_of(after.inputs)
        outputs = shapes_of(before.outputs) != shapes_of(after.outputs)
        changes = tuple(changes_between(before, after))
        if not (shapes or outputs or changes):
            self._addresses(before, after)
            return
        cause = self._cause(before, after, changes, shapes=shapes, outputs=outputs)
        if shapes or outputs or cause.kind == "scalars":
            self._remember_sizes(before, after, cause)
        self._mark(0, before, cause, tensors=shapes or outputs)
        self._mark(1, after, cause, tensors=shapes or outputs)

    def _cause(
        self, before: Op, after: Op, changes: tuple[Change, ...], *, shapes: bool, outputs: bool
    ) -> Difference:
        """The known cause of this difference, or a new one."""
        growing = self._growing(before, after) if shapes else None
        cause = self._inherited(1, after) or self._inherited(0, before)
        if cause is None and growing is None and changes:
            # A number that changes just as a tensor's size did before is that size.
            causes = [self._size_cause(change.before, change.after) for change in changes]
            cause = causes[0] if causes and all(causes) else None
        if cause is None and growing is None and (shapes or outputs):
            cause = self._consequence(after)
        if cause is not None:
            cause.followers += 1
            return cause
        kind: DifferenceKind = "shapes" if shapes or outputs else "scalars"
        if growing is not None:
            kind = "growing"
        elif is_data_dependent(after):
            kind = "data-dependent"
        cause = Difference(kind, before, after, changes)
        if growing is not None:
            cause.uses, cause.external = growing
        self.found.append(cause)
        return cause

    def _growing(
        self, before: Op, after: Op
    ) -> tuple[tuple[TensorUse | None, TensorUse], External] | None:
        """An operand from outside the iteration whose shape changed, or that is new."""
        old = {0: None, **dict(enumerate(before.inputs))}
        longer = len(before.inputs) != len(after.inputs)
        for place, use in enumerate(after.inputs):
            external = self.sides[1].external(use)
            earlier = old.get(place)
            if external is None or external.origin == "input":
                continue
            if earlier is None or earlier.shape != use.shape or longer:
                return (earlier, use), external
        return None

    def _addresses(self, before: Op, after: Op) -> None:
        """Operands from outside the iteration that lie elsewhere than an iteration before."""
        if self.may_settle or self._consequence(after) is not None:
            return  # an optimizer that updates other parameters does so for a known cause
        for old, new in zip(before.inputs, after.inputs, strict=True):
            if old.storage == new.storage or not new.is_cuda:
                continue
            was, now = self.sides[0].external(old), self.sides[1].external(new)
            if was is None or now is None or "input" in (was.origin, now.origin):
                continue
            if new.storage not in self.rebound:
                self.rebound.add(new.storage)
                maker = self.sides[0].maker(new)
                self.found.append(
                    Difference("rebound", before, after, uses=(old, new), external=now, maker=maker)
                )

    # ---- following a cause

    def _inherited(self, side: int, op: Op) -> Difference | None:
        """The cause that an operand, or the forward operator of a backward one, is subject to."""
        for use in op.inputs:
            cause = self.by_storage[side].get(use.storage)
            if cause is not None:
                return cause
        if op.forward_index is not None:
            return self.by_index[side].get(op.forward_index)
        return None

    def _mark(self, side: int, op: Op, cause: Difference, *, tensors: bool = True) -> None:
        self.by_index[side][op.index] = cause
        if tensors:
            for use in op.outputs:
                self.by_storage[side][use.storage] = cause

    def _remember_sizes(self, before: Op, after: Op, cause: Difference) -> None:
        old, new = (*before.inputs, *before.outputs), (*after.inputs, *after.outputs)
        for was, now in zip(old, new, strict=False):
            for pair in zip(was.shape, now.shape, strict=False):
                if pair[0] != pair[1]:
                    self.sizes.setdefault(pair, cause)
            if was.numel != now.numel:
                self.sizes.setdefault((was.numel, now.numel), cause)

    def _size_cause(self, before: Arg, after: Arg) -> Difference | None:
        if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
            differing = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
            causes = [self._size_cause(*pair) for pair in differing]
            return causes[0] if causes and all(causes) else None
        return self.sizes.get((before, after)) if isinstance(after, (int, float)) else None


class Found(Struct, frozen=True):
    """A difference between two iterations, by their indices."""

    first: int
    second: int
    difference: Difference
    source: Source | None  # what the host read or drew that explains it


@once
def differences(recording: Recording) -> tuple[Found, ...]:
    """Every first cause in every pair of compared iterations, in execution order."""
    sources = sources_of(recording)
    found: list[Found] = []
    for first, second in _pairs(recording):
        pairs = align(first.ops, second.ops)
        # New addresses may be a last trace of initialization, which does not come back.
        may_settle = first is recording.captured[0] and len(recording.captured) > 2
        comparison = Comparison(first, second, may_settle=may_settle)
        for difference in comparison.run(pairs):
            source = difference.source_among(sources)
            found.append(Found(first.index, second.index, difference, source))
    return tuple(_without_echoes(found))


def _without_echoes(found: list[Found]) -> Iterator[Found]:
    """Leave out backward passes that differ because an earlier iteration went another way.

    Gradients that one iteration leaves behind are added to by the next: after an optimizer step
    that was skipped, the backward pass runs more operators.
    """
    branches = any(one.difference.kind == "operators" and one.difference.sure for one in found)
    for one in found:
        inner = one.difference
        is_echo = inner.kind == "operators" and inner.op.phase == "backward" and not inner.sure
        if not (branches and is_echo):
            yield one


def _pairs(recording: Recording) -> Iterator[tuple[Iteration, Iteration]]:
    """Consecutive iterations whose inputs have equal shapes: others may well differ."""
    by_shapes: dict[tuple[object, ...], list[Iteration]] = {}
    for iteration in recording.captured:
        by_shapes.setdefault(iteration.input_shapes, []).append(iteration)
    for alike in by_shapes.values():
        yield from pairwise(alike)
