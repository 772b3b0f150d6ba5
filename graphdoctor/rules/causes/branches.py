"""An operator that one iteration ran and another did not -> the branch that decided it."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from graphdoctor.rules.causes.branch_points import Branch, enclosing_branches, jumps_before
from graphdoctor.values.recording import External, Iteration, Op, TensorUse


class Side:
    """One of two compared iterations, with what is looked up in it."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration
        self._externals = {external.storage: external for external in iteration.externals}

    def op(self, place: int | None) -> Op | None:
        return None if place is None else self.iteration.ops[place]

    def external(self, use: TensorUse) -> External | None:
        return self._externals.get(use.storage)

    def maker(self, use: TensorUse) -> Op | None:
        """The operator of this iteration that made a storage."""
        return self._makers.get(use.storage)

    @cached_property
    def _makers(self) -> dict[int, Op]:
        makers: dict[int, Op] = {}
        for op in self.iteration.ops:
            for use in op.outputs:
                makers.setdefault(use.storage, op)
        return makers

    @cached_property
    def lines(self) -> frozenset[tuple[str, int]]:
        """Every line that operators ran on or were called from; made where iterations differ."""
        places = set()
        for op in self.iteration.ops:
            if op.location is not None:
                places.add(op.location)
                places.update(op.stack)
        return frozenset((place.file, place.line) for place in places)

    def ran(self, file: str, lines: tuple[int, int]) -> bool:
        return any((file, line) in self.lines for line in range(lines[0], lines[1] + 1))


class Decision(Struct, frozen=True):
    """The branch that decided whether an operator ran; `sure` if elsewhere its body did not run."""

    branch: Branch | None
    sure: bool = False


def decision_on(op: Op, *, other: Side) -> Decision:
    """The branch around or above the operator that the other iteration left by another way.

    Looked for in the outermost function on the call chain that went another way: a branch whose
    body did not run, else the only branch above that may leave the function or the round, else the
    innermost loop, which then went round another number of times.
    """
    chain = (*reversed(op.stack), op.location) if op.location is not None else ()
    loop: Branch | None = None
    for frame in chain:
        diverged = (frame.file, frame.line) not in other.lines
        for branch in enclosing_branches(frame):
            bodies = (lines for lines in (branch.body, branch.orelse) if lines is not None)
            body = next((one for one in bodies if one[0] <= frame.line <= one[1]), None)
            if body is not None and branch.kind == "if" and not other.ran(branch.file, body):
                return Decision(branch, sure=True)
            if branch.kind in ("while", "for"):
                loop = branch
        if diverged:
            jumps = jumps_before(frame)
            return Decision(jumps[0] if len(jumps) == 1 else loop)
    return Decision(loop)
