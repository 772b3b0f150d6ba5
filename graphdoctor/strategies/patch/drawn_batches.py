"""Draws the batches of a loop before it, as a list over which the loop then goes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from graphdoctor.target.program.names import Names

_NAME = "batches"


@dataclass(frozen=True, slots=True)
class DrawnFirst:
    """`before` draws all batches into a list; `loop` runs the passes over it, with `code` at the left margin.

    `name` is that of the list, the only thing that the loop reads of it; `bound` are the names that `before`
    binds to the batch of the next step.
    """

    name: str
    bound: frozenset[str]
    before: str
    loop: ast.For
    code: str


def drawn_first(loop: ast.stmt, text: str, taken: set[str]) -> DrawnFirst | None:
    """None for a statement that is no such loop."""
    if not isinstance(loop, ast.For) or loop.orelse or _NAME in taken:
        return None
    if loop.body[0].lineno == loop.lineno or "\n" in source_segment(text, loop.iter):
        return None
    for number, statement in enumerate(loop.body):
        target = _drawn(statement, loop)
        if target is None:
            continue
        rest = [*loop.body[:number], *loop.body[number + 1 :]]
        target_code, iter_code = source_segment(text, loop.target), source_segment(text, loop.iter)
        draw = source_segment(text, statement.value)  # type: ignore[attr-defined]
        is_first = number == 0 and not Names([loop]).early & {*_names(target)}
        is_counted = bool(Names(rest).loaded & {*_names(loop.target)})
        batch = source_segment(text, target)
        over = f"for {batch} in {_NAME}:"
        if is_counted:
            counted = f"({batch})" if isinstance(target, ast.Tuple) else batch
            over = f"for {target_code}, {counted} in enumerate({_NAME}):"
            if not iter_code.startswith("range(") or "," in iter_code:
                return None
        first = f"({batch})" if isinstance(target, ast.Tuple) else batch
        header = f"for {target_code} in {iter_code}"
        before = (
            f"{_NAME} = [{draw} {header}]\n"
            if is_first
            else f"{_NAME} = [{first}]\n{header}:\n    {_NAME}.append({draw})\n{batch} = {_NAME}.pop()\n"
        )
        code = _without(loop, statement, over, text)
        bound = frozenset() if is_first else frozenset(_names(target))
        return DrawnFirst(_NAME, bound, before, _parsed(code), code)
    return None


def _drawn(statement: ast.stmt, loop: ast.For) -> ast.expr | None:
    """What a statement binds, where it only draws the batch of a pass."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    call, names = statement.value, _names(statement.targets[0])
    if not isinstance(call, ast.Call) or not names:
        return None
    others = Names([each for each in loop.body if each is not statement])
    is_free = not Names([statement]).loaded & others.stored and not {*names} & others.stored
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    draws = last in ("next", "sample") or "batch" in last
    return statement.targets[0] if is_free and draws and {*names} <= others.loaded else None


def _names(target: ast.expr) -> list[str]:
    """The names of a target; none of one that has other parts."""
    parts: Sequence[ast.expr] = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else []


def _without(loop: ast.For, drawn: ast.stmt, header: str, text: str) -> str:
    """The loop's lines with another header, without the drawing and the comment above it."""
    lines = text.replace("\r\n", "\n").split("\n")
    dropped = lines_with_comment(drawn, text)
    kept = [
        lines[number - 1][loop.col_offset :]
        for number in range(loop.lineno + 1, (loop.end_lineno or 0) + 1)
        if number not in dropped
    ]
    return "\n".join([header, *kept]) + "\n"


def lines_with_comment(statement: ast.stmt, text: str) -> range:
    """The numbers of a statement's lines, and of those of the comment above it."""
    lines, first = text.split("\n"), statement.lineno
    while lines[first - 2].strip().startswith("#"):
        first -= 1
    return range(first, (statement.end_lineno or statement.lineno) + 1)


def source_segment(text: str, node: ast.AST) -> str:
    return ast.get_source_segment(text, node) or ""


def _parsed(code: str) -> ast.For:
    loop = ast.parse(code).body[0]
    assert isinstance(loop, ast.For)
    return loop
