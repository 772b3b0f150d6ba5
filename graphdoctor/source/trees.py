"""The syntax tree of a file, parsed once for all, and the functions, classes and statements around a line."""

from __future__ import annotations

import ast
import linecache
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from types import CodeType

FunctionSyntax = ast.FunctionDef | ast.AsyncFunctionDef
SyntaxScope = FunctionSyntax | ast.ClassDef | ast.Module
Owner = ast.Module | ast.FunctionDef
WHOLE_FILE = "<module>"  # the name of a file's own code object
# What makes a tensor of values of the host.
MAKES_TENSOR = frozenset({
    *("as_tensor", "from_numpy", "tensor"),
    *("BoolTensor", "DoubleTensor", "FloatTensor", "IntTensor", "LongTensor", "Tensor"),
})  # fmt: skip


@cache
def tree_of(file: str) -> ast.Module | None:
    """A file's syntax tree; None if the file is empty, cannot be read or is not Python.

    One tree for all callers: a node of one can be looked up by another.
    """
    source = "".join(linecache.getlines(file))
    try:
        return ast.parse(source) if source else None
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=4096)
def scope_at(file: str, line: int) -> FunctionSyntax | ast.Module | None:
    """The innermost function around a line, or the module."""
    tree = tree_of(file)
    if tree is None:
        return None
    best: FunctionSyntax | ast.Module = tree
    for node in statements_around(tree, line):
        # A lambda has no statements; its enclosing function is what can be reasoned about.
        if isinstance(node, FunctionSyntax):
            best = node  # outside in: a later match is deeper
    return best


def first_parameter(scope: SyntaxScope | None) -> str:
    """The name of a function's first parameter, such as "self"; "" without one."""
    found = scope.args.args[:1] if isinstance(scope, FunctionSyntax) else ()
    return next((each.arg for each in found), "")


def class_at(file: str, line: int) -> ast.ClassDef | None:
    """The innermost class around a line."""
    tree = tree_of(file)
    found: ast.ClassDef | None = None
    for node in statements_around(tree, line) if tree is not None else ():
        if isinstance(node, ast.ClassDef):
            found = node
    return found


def body_of_function(file: str, name: str) -> list[ast.stmt]:
    """The statements of a function at the top of a file; an empty list without such a function."""
    tree = tree_of(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node.body
    return []


def owner_of(code: CodeType) -> Owner | None:
    """The function, or the file, that a code object was compiled from; None without its source."""
    tree = tree_of(code.co_filename)
    if tree is None or not tree.body:
        return None
    if code.co_name == WHOLE_FILE:
        return tree
    for node in _statements_in(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            lines = [node.lineno, *(each.lineno for each in node.decorator_list)]
            if min(lines) == code.co_firstlineno:
                return node
    return None


def holds(node: ast.AST, line: int) -> bool:
    """Whether a line is one of a node's lines."""
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def statements_of(scope: ast.stmt | ast.Module) -> list[ast.stmt]:
    """All statements inside a function, another statement or a file, by line."""
    return sorted(_statements_in(scope), key=lambda node: node.lineno)


def statements_around(scope: ast.stmt | ast.Module, line: int) -> Iterator[ast.stmt]:
    """The statements inside a function or a file that have a line, outside in."""
    return (node for node in _statements_in(scope, line) if holds(node, line))


_HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def _statements_in(scope: ast.stmt | ast.Module, line: int | None = None) -> Iterator[ast.stmt]:
    """All statements inside, outside in; with a line, only those inside of statements that have it.

    No expression holds a statement, and a file has ten times as many expressions.
    """
    waiting: deque[ast.AST] = deque([scope])
    while waiting:
        for node in ast.iter_child_nodes(waiting.popleft()):
            if isinstance(node, ast.stmt):
                yield node
                if line is not None and not holds(node, line):
                    continue
            if isinstance(node, _HOLD_STATEMENTS):
                waiting.append(node)


def walk_until(nodes: Iterable[ast.AST], is_end: Callable[[ast.AST], bool]) -> Iterator[ast.AST]:
    """The nodes and those inside of them, outside in; what is inside an end is left out, and not the end."""
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        yield node
        if not is_end(node):
            waiting.extend(ast.iter_child_nodes(node))


def is_scope(node: ast.AST) -> bool:
    """Whether what is inside has names of its own, and does not run where it is written."""
    return isinstance(node, FunctionSyntax | ast.ClassDef | ast.Lambda)


def always_run(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes without those that an `if` decides on."""
    waiting = [*statements]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [node.test] if isinstance(node, ast.If) else ast.iter_child_nodes(node)


def leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether what is below a block does not run after it: it ends with `raise`, `return`, `continue` or `break`."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return leaves(last.body) and leaves(last.orelse)
    return isinstance(last, (ast.Return, ast.Continue, ast.Break, ast.Raise))


def calls_in(*nodes: ast.AST) -> Iterator[ast.Call]:
    """The calls anywhere in the nodes."""
    return (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call))


def last_name(node: ast.AST) -> str:
    """`f` of `f` and of `a.b.f`; "" of what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
