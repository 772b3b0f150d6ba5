"""An operator that one iteration ran and another did not in, the branch that decided it out."""

from __future__ import annotations

from functools import cached_property

from graphdoctor.recording import External, Iteration, Op, TensorUse
from graphdoctor.rules._source import Branch, enclosing_branches, jumps_before


class Side:
    """One of two compared iterations, with what is looked up in it."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration
        self._externals = {external.storage: external for external in iteration.externals}

    def op(self, place: int | None) -> Op | None:
        return None if place is None else self.iteration.ops[place]

    def external(self, use: TensorUse) -> External | None:
        return self._externals.get(use.storage)

    @cached_property
    def lines(self) -> frozenset[tuple[str, int]]:
        """Every line that operators ran on or were called from, made only where iterations differ."""
        places = set()
        for op in self.iteration.ops:
            if op.location is not None:
                places.add(op.location)
                places.update(op.stack)
        return frozenset((place.file, place.line) for place in places)

    def ran(self, file: str, lines: tuple[int, int]) -> bool:
        return any((file, line) in self.lines for line in range(lines[0], lines[1] + 1))


def deciding_branch(op: Op, *, other: Side) -> Branch | None:
    """The outermost branch around the operator whose body did not run at all in the other
    iteration.

    Failing that, the innermost loop around the operator: it went round another number of times.
    """
    if op.location is None:
        return None
    loop: Branch | None = None
    jumps: list[Branch] = []
    for frame in (*reversed(op.stack), op.location):
        for branch in enclosing_branches(frame):
            body = _body_with(branch, frame.line)
            if body is not None and branch.kind == "if" and not other.ran(branch.file, body):
                return branch
            if branch.kind in ("while", "for"):
                loop = branch
        jumps += jumps_before(frame)
    return jumps[0] if len(jumps) == 1 else loop


def _body_with(branch: Branch, line: int) -> tuple[int, int] | None:
    for lines in (branch.body, branch.orelse):
        if lines is not None and lines[0] <= line <= lines[1]:
            return lines
    return None
