"""Finds the branches and statements that depend on a value that the host got."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from functools import lru_cache

from msgspec import Struct

from graphdoctor.rules.causes.branch_points import Branch, branch_at, branches_on, jumps_before
from graphdoctor.rules.causes.source import (
    lines_of,
    names_in,
    statement_at,
    targets_of,
)
from graphdoctor.source.trees import class_at, scope_at, statements_of
from graphdoctor.values.locations import Lines, Location

Line = tuple[str, int]
_BLOCKS = (ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


class Use(Struct, frozen=True):
    """A function in which these names hold the value, or something computed from it."""

    scope: Lines
    names: frozenset[str]


class Flow(Struct, frozen=True):
    """Where a host value goes: the branches it decides, the functions that hold it."""

    origin: Location | None
    branches: tuple[Branch, ...] = ()
    uses: tuple[Use, ...] = ()
    escapes: bool = False  # the step itself returns it

    def decides(self, branch: Branch) -> bool:
        return any(own.file == branch.file and own.line == branch.line for own in self.branches)

    def feeds(self, frames: Sequence[Location]) -> bool:
        """Whether a call chain stands on the value's own line or on one that mentions it."""
        return any(self._feeds(frame) for frame in frames)

    def holds(self, frames: Sequence[Location]) -> bool:
        """Whether one of these lines stands in the body of a branch that the value decides."""
        return any(own.holds(frame) for own in self.branches for frame in frames)

    def leaves_before(self, frames: Sequence[Location]) -> bool:
        """Whether a branch that the value decides may keep one of these lines from running."""
        return any(own in jumps_before(frame) for own in self.branches for frame in frames)

    def _feeds(self, frame: Location) -> bool:
        own = self.origin
        if own is not None and (own.file, own.line) == (frame.file, frame.line):
            return True
        return any(
            use.scope.holds(frame) and use.names & _mentioned(frame.file, frame.line)
            for use in self.uses
        )


def value_flow(
    frames: Sequence[Location], tensor_lines: Collection[Line], step: Lines | None = None
) -> Flow:
    """Follow a value from the line that got it, outwards through the functions that return it.

    `frames` lead from that line outwards. `tensor_lines` are lines on which operators ran: what
    they bind is a tensor, and tensors carry the value on the device, where it is no hazard. Of the
    function that `step` is a part of, no other line is in the step.
    """
    branches: list[Branch] = []
    uses: list[Use] = []
    escapes = False
    for frame in frames:
        scope = scope_at(frame.file, frame.line)
        statement = statement_at(frame.file, frame.line)
        if scope is None or statement is None:
            break
        decided = branch_at(frame)
        if decided is not None:
            implied = _assigned_in(scope, decided, tensor_lines)
            branches += (decided, *branches_on(scope, frame.file, implied))
            uses.append(Use(lines_of(frame.file, scope), implied))
            break
        names = _names(scope, statement, frame, tensor_lines)
        branches += branches_on(scope, frame.file, names) if names else ()
        uses.append(Use(lines_of(frame.file, scope), names))
        kept = frozenset(name for name in names if name.startswith("self."))
        owner = class_at(frame.file, frame.line) if kept else None
        if owner is not None:  # the other methods see it too
            branches += (b for b in branches_on(owner, frame.file, kept) if b not in branches)
            uses.append(Use(lines_of(frame.file, owner), kept))
        returned = _returned(scope, statement, names, frame.file, tensor_lines)
        # Beside a tensor on the same line, the value may still be an item of the tuple returned.
        escapes = frame is frames[-1] and (returned or isinstance(statement, ast.Return))
        if not returned:
            break
    inside = tuple(branch for branch in branches if step is None or _is_in(step, branch.location))
    return Flow(frames[0] if frames else None, inside, tuple(uses), escapes)


def _is_in(step: Lines, place: Location) -> bool:
    """Whether a line is one of the step's, or of a function that the step may call."""
    if place.file != step.file or step.holds(place):
        return True
    return scope_at(place.file, place.line) is not scope_at(step.file, step.first)


def _names(
    scope: ast.AST, start: ast.stmt, frame: Location, tensor_lines: Collection[Line]
) -> frozenset[str]:
    """The names bound to the value, directly or through further statements of the function."""
    if (frame.file, frame.line) in tensor_lines:
        return frozenset()
    names = targets_of(start)
    for statement in statements_of(scope):  # type: ignore[arg-type]
        later = statement.lineno > start.lineno
        simple = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        if not later or not simple or (frame.file, statement.lineno) in tensor_lines:
            continue
        value = getattr(statement, "value", None)
        if value is not None and names & names_in(value):
            names |= targets_of(statement)
    return names


def _assigned_in(scope: ast.AST, branch: Branch, tensor_lines: Collection[Line]) -> frozenset[str]:
    """The names that a side of a branch binds to anything but tensors, such as a flag."""
    names: frozenset[str] = frozenset()
    for statement in statements_of(scope):  # type: ignore[arg-type]
        inside = branch.holds(Location(branch.file, statement.lineno))
        if inside and (branch.file, statement.lineno) not in tensor_lines:
            names |= targets_of(statement)
    return names


def _returned(
    scope: ast.AST,
    statement: ast.stmt,
    names: frozenset[str],
    file: str,
    tensor_lines: Collection[Line],
) -> bool:
    """Whether the function hands the value, and not a tensor computed from it, to its caller."""
    if isinstance(statement, ast.Return):
        return (file, statement.lineno) not in tensor_lines
    returns = (
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Return) and node.value and (file, node.lineno) not in tensor_lines
    )
    return bool(names) and any(names & names_in(node) for node in returns)


@lru_cache(maxsize=4096)
def _mentioned(file: str, line: int) -> frozenset[str]:
    """Names on a line's statement: of a compound statement, those of the header."""
    statement = statement_at(file, line)
    if isinstance(statement, (ast.If, ast.While)):
        return names_in(statement.test)
    if isinstance(statement, ast.For):
        return names_in(statement.iter)
    if statement is None or isinstance(statement, _BLOCKS):
        return frozenset()
    return names_in(statement)
