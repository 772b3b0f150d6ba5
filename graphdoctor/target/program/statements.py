"""Find the statements of a running function that contain given lines: the step in its block."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType

from graphdoctor.source.trees import Owner, holds, owner_of

LOOPS = (ast.For, ast.While)
_REPEATING = (*LOOPS, ast.comprehension, ast.Lambda)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive statements `first` to `last` of one block in the code of a function, or of a file.

    `around` are the compound statements that hold the block, outermost first.
    """

    code: CodeType
    owner: Owner
    block: tuple[ast.stmt, ...]
    first: int
    last: int
    around: tuple[ast.stmt, ...]
    last_line: int  # of what belongs to the step; the rest of the last statement does not

    @property
    def is_whole_file(self) -> bool:
        return isinstance(self.owner, ast.Module)

    @property
    def first_line(self) -> int:
        return self.block[self.first].lineno

    @property
    def statements(self) -> tuple[ast.stmt, ...]:
        """The step's statements; the last one ends with what belongs to the step."""
        *whole, last = self.block[self.first : self.last + 1]
        return (*whole, _cut(last, self.last_line))

    def of(self, first: int, last: int) -> Span:
        """These whole statements of the same block."""
        return replace(self, first=first, last=last, last_line=self.block[last].end_lineno or 0)

    @property
    def loop(self) -> ast.stmt | None:
        """The outermost loop around the block."""
        return next((each for each in self.around if isinstance(each, LOOPS)), None)

    def block_with(self, holder: ast.stmt) -> list[ast.stmt]:
        """The block that a compound statement around the step is in."""
        for node in ast.walk(self.owner):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and holder in block:
                    return block
        return [holder]

    def position(self, line: int) -> int | None:
        """The step's statement on that line, counted from 0; None for a line outside."""
        for index in range(self.first, self.last + 1):
            if holds(self.block[index], line):
                return index - self.first
        return None

    def repeats(self, position: int) -> bool:
        """Whether a part of that statement may run several times when it runs once."""
        return any(isinstance(n, _REPEATING) for n in ast.walk(self.block[self.first + position]))


def find_span(code: CodeType, lines: Sequence[int], *, last_line: int) -> Span | None:
    """The shortest run of statements, in the innermost block, that holds all these lines.

    `last_line` is the line on which the step ends. None where the source is not there.
    """
    owner = owner_of(code)
    if owner is None:
        return None
    block, around = owner.body, list[ast.stmt]()
    while True:
        held = [[i for i, each in enumerate(block) if holds(each, line)] for line in lines]
        if not all(held):
            return None
        first = min(indices[0] for indices in held)
        last = max(indices[-1] for indices in held)  # several statements may stand on one line
        inner = _inner_block(block[first], lines) if first == last else None
        if inner is None:
            return Span(code, owner, tuple(block), first, last, tuple(around), last_line)
        around.append(block[first])
        block = inner


def block_of_with(code: CodeType, line: int) -> Span | None:
    """The body of the `with` statement on a line, which marks it as a step."""
    owner = owner_of(code)
    if owner is None:
        return None
    around: list[ast.stmt] = []
    block: Sequence[ast.stmt] = owner.body
    while (holder := next((s for s in block if holds(s, line)), None)) is not None:
        if isinstance(holder, ast.With) and line < holder.body[0].lineno:
            body, last = tuple(holder.body), len(holder.body) - 1
            end = holder.body[-1].end_lineno or 0
            return Span(code, owner, body, 0, last, (*around, holder), end)
        around.append(holder)
        block = _inner_block(holder, [line]) or ()
    return None


def whole_function(code: CodeType) -> Span | None:
    """All statements of a function."""
    owner = owner_of(code)
    if owner is None:
        return None
    last = owner.body[-1]
    return Span(
        code, owner, tuple(owner.body), 0, len(owner.body) - 1, (), last.end_lineno or last.lineno
    )


def blocks_to(owner: Owner, line: int) -> Iterator[tuple[Sequence[ast.stmt], bool]]:
    """The blocks that hold a line, outermost first, and whether each runs several times for one of the owner."""
    block: Sequence[ast.stmt] = owner.body
    repeats = False
    while block:
        yield block, repeats
        holder = next((s for s in block if holds(s, line)), None)
        if holder is None:
            return
        repeats = repeats or isinstance(holder, LOOPS)
        block = _inner_block(holder, [line]) or ()


def extended(span: Span, name: str) -> Span | None:
    """The span from the nearest statement before it that binds a name; None where there is none."""
    for index in range(span.first - 1, -1, -1):
        bound = (n for n in ast.walk(span.block[index]) if isinstance(n, ast.Name))
        if any(n.id == name and isinstance(n.ctx, ast.Store) for n in bound):
            return replace(span, first=index)
    return None


def _within(block: Sequence[ast.stmt], lines: Sequence[int]) -> bool:
    end = block[-1].end_lineno or 0
    return all(block[0].lineno <= line <= end for line in lines)


def _inner_block(statement: ast.stmt, lines: Sequence[int]) -> list[ast.stmt] | None:
    return next((block for block in _blocks(statement) if _within(block, lines)), None)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, _NESTED):
        return
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for inner in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield inner.body


def _cut(statement: ast.stmt, line: int) -> ast.stmt:
    """The statement without what follows a line in its branch: logging after `optimizer.step()`, say."""
    if isinstance(statement, LOOPS):
        return statement
    block = _inner_block(statement, [line])
    if block is None:
        return statement
    end = max((i for i, each in enumerate(block) if holds(each, line)), default=len(block) - 1)
    cut = copy.copy(statement)
    for name, value in ast.iter_fields(statement):
        if value is block:
            setattr(cut, name, [*block[:end], _cut(block[end], line)])
    return cut
