"""Two calls of the same operator -> what differs between them; and what a difference is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from graphdoctor.operators import host_learns
from graphdoctor.operators.conditions import has_mask_index
from graphdoctor.rules.causes.branch_points import Branch
from graphdoctor.rules.causes.sources import Source
from graphdoctor.values.recording import Arg, External, Op, TensorUse

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
