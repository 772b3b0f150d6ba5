"""Finds the function and the statement at a place in a Python file; None where unreadable."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from graphdoctor.source.trees import (
    SyntaxScope,
    class_at,
    holds,
    leaves,
    scope_at,
    statements_around,
    statements_of,
    tree_of,
)
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Lines, Location

_READING_METHODS = frozenset({"item", "tolist", "equal", "allclose", "is_nonzero", "cpu", "numpy"})
_READING_BUILTINS = frozenset({"float", "int", "bool", "complex"})
_FORMATTING = frozenset({"print", "str", "repr", "format"})


def lines_of(file: str, scope: SyntaxScope) -> Lines:
    """The lines of one function (or of the module outside all functions)."""
    if isinstance(scope, ast.Module):
        return Lines(file, 1, len(linecache.getlines(file)))
    return Lines(file, scope.lineno, scope.end_lineno or scope.lineno)


@lru_cache(maxsize=4096)
def statement_at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement on a line; of `if test: body` the `if`, where its test reads.

    So `if t.any(): raise ...` is one thing, on one line or on two.
    """
    scope = scope_at(file, line)
    if scope is None:
        return None
    found: ast.stmt | None = None
    for node in statements_around(scope, line):
        if found is not None and _branches_here(found, line) and _is_read_by_test(found, node):
            continue
        found = node
    return found


def with_expressions(statement: ast.stmt, new: Mapping[ast.AST, str]) -> str:
    """The statement with other code for some of its expressions."""
    text = ast.unparse(statement)
    for node, code in new.items():
        text = text.replace(ast.unparse(node), code)
    return text


def written(place: Location | None, methods: frozenset[str], builtins: frozenset[str]) -> str:
    """The first call on the line of one of these methods or builtins, as written; or ""."""
    return "" if place is None else _written_at(place.file, place.line, methods, builtins)


@lru_cache(maxsize=4096)
def _written_at(file: str, line: int, methods: frozenset[str], builtins: frozenset[str]) -> str:
    """One line reads many values in a step, as in a loop."""
    statement = statement_at(file, line)
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Call) and holds(node, line) and _calls(node, methods, builtins):
            return shortened(ast.unparse(node))
    return ""


def keyword_given(place: Location, names: frozenset[str]) -> str:
    """The first of these keywords that a call on the line gives a computed value; or ""."""
    statement = statement_at(place.file, place.line)
    keywords = (
        (node for node in ast.walk(statement) if isinstance(node, ast.keyword)) if statement else ()
    )
    for keyword in keywords:
        is_named = keyword.arg in names and holds(keyword, place.line)
        if is_named and not isinstance(keyword.value, ast.Constant):
            return keyword.arg or ""
    return ""


def is_formatting(place: Location | None) -> bool:
    """Whether the line turns values into text and does not itself ask for the value of one."""
    if place is None or written(place, _READING_METHODS, _READING_BUILTINS):
        return False
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        if _formats(node) and holds(node, place.line):
            return True
    return False


def targets_of(statement: ast.stmt) -> frozenset[str]:
    """The names ("n", "self.n") that a statement binds."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For)):
        targets = [statement.target]
    names = {name for target in targets for name in _bound(target)}
    walrus = (node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr))
    return frozenset({*names, *walrus})


def kept_until(lines: Lines, names: Iterable[str]) -> dict[str, int]:
    """Which of these names the lines may read before they bind them, and the line behind which each is complete."""
    block = _block_of(lines)
    kept = [name for name in names if _first_use(block, name) != "bound"]
    ends = {name: _end_of_binding(block, name) or lines.last for name in kept}
    read = {name: _last_read(block, name) for name in kept}  # a later one may take its gradient
    return {name: lines.last if read[name] > end else end for name, end in ends.items()}


def _block_of(lines: Lines) -> list[ast.stmt]:
    """The outermost statements of these lines."""
    scope = scope_at(lines.file, lines.first)
    found: list[ast.stmt] = []
    for statement in statements_of(scope) if scope is not None else ():
        end = found[-1].end_lineno or 0 if found else lines.first - 1
        if end < statement.lineno <= lines.last:
            found.append(statement)
    return found


def _first_use(block: list[ast.stmt], name: str) -> Literal["bound", "read", ""]:
    """What the statements do with a name first; "read" if one side of an `if` binds it, since the other keeps it."""
    for statement in block:
        own = [node for node in own_nodes(statement) if getattr(node, "id", None) == name]
        if any(isinstance(node.ctx, ast.Load) for node in own):  # type: ignore[attr-defined]
            return "read"
        if own:
            return "read" if isinstance(statement, ast.AugAssign) else "bound"
        sides = [_first_use(inner, name) for inner in _blocks_in(statement)]
        if isinstance(statement, ast.If):
            if "read" in sides:
                return "read"
            both = (statement.body, statement.orelse)
            going_on = [_first_use(side, name) for side in both if not leaves(side)]
            if any(going_on):
                return "bound" if all(going_on) else "read"
        elif any(sides):
            return next(side for side in sides if side)
    return ""


def _end_of_binding(block: list[ast.stmt], name: str) -> int:
    """The last line of the branch that binds a name; 0 if each run binds it."""
    for statement in block:
        for inner in _blocks_in(statement):
            if end := _end_of_binding(inner, name):
                return end
            is_bound = any(name in targets_of(each) for each in inner)
            if is_bound and isinstance(statement, ast.If):
                return inner[-1].end_lineno or 0
    return 0


def _last_read(block: list[ast.stmt], name: str) -> int:
    """The last line on which the statements read a name; 0 if they do not."""
    nodes = (node for statement in block for node in ast.walk(statement))
    names = (each for each in nodes if isinstance(each, ast.Name) and each.id == name)
    return max((each.lineno for each in names if isinstance(each.ctx, ast.Load)), default=0)


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without those of statements inside it."""
    for part in ast.iter_child_nodes(statement):
        if not isinstance(part, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from ast.walk(part)


def _blocks_in(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of statements right inside a statement."""
    parts = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    fields = [getattr(part, name, []) for part in parts for name in ("body", "orelse", "finalbody")]
    return [block for block in fields if block]


def data_assigned_near(place: Location) -> ast.Assign | None:
    """A statement `p.data = new` in the function around a line, or in another method of its class."""
    for statement in _statements_near(place):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "data":
                return statement
    return None


def _statements_near(place: Location) -> Iterator[ast.stmt]:
    """The statements of the function around a line, then of the methods of its class."""
    scope, owner = scope_at(place.file, place.line), class_at(place.file, place.line)
    if scope is not None:
        yield from statements_of(scope)
    for method in owner.body if owner is not None else ():
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            yield from statements_of(method)


def names_in(node: ast.AST) -> frozenset[str]:
    """The names and dotted names that an expression or statement mentions."""
    return frozenset(
        ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))
    )


def _bound(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _bound(part)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield ast.unparse(target)


def _branches_here(node: ast.stmt, line: int) -> bool:
    return isinstance(node, (ast.If, ast.While)) and holds(node.test, line)


def _is_read_by_test(branch: ast.stmt, body: ast.stmt) -> bool:
    """Whether it is the test of `if test: body` that reads a value, as far as one can tell."""
    test = tests_of(branch)[0]
    if reads(test) or isinstance(body, ast.Raise):
        return True
    parts = list(ast.walk(body))
    if not any(isinstance(part, (ast.Call, ast.Subscript, ast.JoinedStr)) for part in parts):
        return True
    asks = any(isinstance(part, ast.Call) for part in ast.walk(test))
    return asks and not any(is_reading(part) or _formats(part) for part in parts)


def _formats(node: ast.AST) -> bool:
    if isinstance(node, ast.FormattedValue):
        return True
    return isinstance(node, ast.Call) and _calls(node, frozenset({"format"}), _FORMATTING)


def tests_of(node: ast.AST) -> list[ast.expr]:
    """The expressions of a node whose truth, or number, picks the way."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return list(node.ifs)
    if isinstance(node, ast.BoolOp):
        return list(node.values[:-1])
    if isinstance(node, ast.Match):
        return [node.subject]
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        return [node.iter] if _calls(node.iter, frozenset(), frozenset({"range"})) else []
    return []


def _calls(node: ast.Call, methods: frozenset[str], builtins: frozenset[str]) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in methods
    return isinstance(node.func, ast.Name) and node.func.id in builtins


def is_reading(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _calls(node, _READING_METHODS, _READING_BUILTINS)


def reads(node: ast.AST) -> bool:
    return any(is_reading(part) for part in ast.walk(node))


def call_at(
    place: Location | None, name: str = ""
) -> tuple[str, tuple[str, ...], frozenset[str | None]] | None:
    """The function, the positional arguments and the names of the others, of the first call of this name on a line.

    Without a name, of the first function of a module `random`: `np.random.beta`.
    """
    statement = statement_at(place.file, place.line) if place is not None else None
    for node in ast.walk(statement) if statement is not None else ():
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if (
            called.rpartition(".")[2] == name
            if name
            else re.fullmatch(r"[\w.]*random\.\w+", called)
        ):
            given = tuple(ast.unparse(each) for each in node.args)
            return called, given, frozenset(each.arg for each in node.keywords)
    return None


def assigned_to(place: Location, attribute: str) -> ast.Assign | None:
    """The statement that binds a tensor to an attribute of this name, in the function or class around a line."""
    for statement in _statements_near(place):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) != "None":
            bound = (name for name in targets_of(statement) if "." in name)
            if any(name.rpartition(".")[2] == attribute for name in bound):
                return statement
    return None


def changed_name(place: Location, method: str) -> str:
    """The variable whose tensor a line changes: `x` of `x.mul_(2)`, `x[0] = 1`, `x += y`; "" if there is none."""
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        target: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value if node.func.attr == method else None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value
        elif isinstance(node, ast.AugAssign):
            target = node.target
        while isinstance(target, (ast.Subscript, ast.Call, ast.Attribute)):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            return target.id
    return ""


def stored_rate(place: Location) -> ast.Assign | ast.AugAssign | None:
    """A statement `group["lr"] = value` in the function or class around a line, or else in its file."""
    tree = tree_of(place.file)
    everywhere = statements_of(tree) if tree is not None else ()
    for statement in (*_statements_near(place), *everywhere):
        if not isinstance(statement, (ast.Assign, ast.AugAssign)):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            index = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(index, ast.Constant) and index.value == "lr":
                return statement
    return None
