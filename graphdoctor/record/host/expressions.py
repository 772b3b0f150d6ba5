"""A frame that runs -> the expression that its instruction stands for, and the syntax around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
from types import CodeType, FrameType

from graphdoctor.source.trees import tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef


def expression_of(frame: FrameType) -> ast.expr | None:
    """The expression that a frame's instruction stands for."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if positions is None or None in positions:
        return None
    return _expressions_of_file(frame.f_code.co_filename).get(positions)  # type: ignore[arg-type]


def is_call_at(node: ast.AST, frame: FrameType) -> bool:
    return isinstance(node, ast.Call) and node is expression_of(frame)


_Positions = tuple[int, int, int, int]


@cache
def _expressions_of_file(file: str) -> dict[_Positions, ast.expr]:
    """The outermost expression from one place to another: lines, and bytes in them."""
    found: dict[_Positions, ast.expr] = {}
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.expr):
            end = node.end_lineno or 0, node.end_col_offset or 0
            found.setdefault((node.lineno, end[0], node.col_offset, end[1]), node)
    return found


@lru_cache(maxsize=1024)
def function_of(code: CodeType, line: int) -> Function | None:
    """The function of a name around a line; none of a file's own statements, whose names all may read."""
    found: Function | None = None
    tree = tree_of(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or line):
            found = node
    return found if found is not None and found.name == code.co_name else None


@cache
def rebound_in(file: str) -> frozenset[str]:
    """The names of a file that functions give to something else outside of themselves."""
    tree = tree_of(file)
    nodes = ast.walk(tree) if tree is not None else ()
    found = (one.names for one in nodes if isinstance(one, (ast.Global, ast.Nonlocal)))
    return frozenset(name for names in found for name in names)


@cache
def parents_in(function: Function) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}


def owner_in(parents: dict[ast.AST, ast.AST], node: ast.AST) -> ast.AST | None:
    """The function, or the like, whose code an expression is."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef,
             ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip
    above = parents.get(node)
    while above is not None and not isinstance(above, kinds):
        above = parents.get(above)
    return above


def statements_around(function: Function, node: ast.AST) -> Iterator[ast.AST]:
    """The compound statements that an expression stands in."""
    parents = parents_in(function)
    above = parents.get(node)
    while above is not None and above is not function:
        yield above
        above = parents.get(above)


def is_in(node: ast.AST, block: Sequence[ast.stmt]) -> bool:
    return any(node is one for statement in block for one in ast.walk(statement))
