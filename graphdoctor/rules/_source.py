"""A place in a Python file in, the statement and the branches found there out; unreadable files give None."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from graphdoctor.model import Location

_READING_METHODS = frozenset({"item", "tolist", "equal", "allclose", "is_nonzero", "cpu", "numpy"})
_READING_BUILTINS = frozenset({"float", "int", "bool", "complex"})
_FORMATTING = frozenset({"print", "str", "repr", "format"})
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


class Branch(Struct, frozen=True):
    """A place where a value picks the way: `text` is the test as written, the bodies are line ranges."""

    file: str
    line: int
    kind: str  # "if", "while", "assert", "conditional expression", ...
    text: str
    body: tuple[int, int] | None = None
    orelse: tuple[int, int] | None = None
    jumps: bool = False  # a side of it leaves: return, continue, break, raise

    @property
    def location(self) -> Location:
        return Location(self.file, self.line)


class Scope(Struct, frozen=True):
    """The lines of one function (or of the module outside all functions)."""

    file: str
    first: int
    last: int

    def holds(self, place: Location) -> bool:
        return place.file == self.file and self.first <= place.line <= self.last


@lru_cache(maxsize=256)
def _parse(file: str) -> ast.Module | None:
    source = "".join(linecache.getlines(file))
    try:
        return ast.parse(source) if source else None
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=4096)
def scope_at(file: str, line: int) -> _Scope | None:
    """The innermost function around a line, or the module."""
    tree = _parse(file)
    if tree is None:
        return None
    best: _Scope = tree
    for node in ast.walk(tree):
        # A lambda has no statements; its enclosing function is what can be reasoned about.
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _holds(node, line):
            best = node  # ast.walk goes outside in: a later match lies deeper
    return best


def lines_of(file: str, scope: _Scope) -> Scope:
    if isinstance(scope, ast.Module):
        return Scope(file, 1, len(linecache.getlines(file)))
    return Scope(file, scope.lineno, scope.end_lineno or scope.lineno)


@lru_cache(maxsize=4096)
def statement_at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement on a line; of `if test: body` on one line, the `if` where it reads."""
    scope = scope_at(file, line)
    if scope is None:
        return None
    found: ast.stmt | None = None
    for node in ast.walk(scope):
        if not isinstance(node, ast.stmt) or node is scope or not _holds(node, line):
            continue
        if found is not None and _branches_here(found, line) and _reads(_tests(found)[0]):
            continue
        found = node
    return found


def written(place: Location | None, methods: frozenset[str], builtins: frozenset[str]) -> str:
    """The first call on the line of one of these methods or builtins, as written; "" if there is none."""
    if place is None:
        return ""
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        if (
            isinstance(node, ast.Call)
            and _holds(node, place.line)
            and _calls(node, methods, builtins)
        ):
            text = ast.unparse(node)
            return text if len(text) <= 60 else f"{text[:57]}..."
    return ""


def is_formatting(place: Location | None) -> bool:
    """Whether the line turns values into text and does not itself ask for the value of one."""
    if place is None or written(place, _READING_METHODS, _READING_BUILTINS):
        return False
    statement = statement_at(place.file, place.line)
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.FormattedValue) and _holds(node, place.line):
            return True
        if isinstance(node, ast.Call) and _holds(node, place.line):
            if _calls(node, frozenset({"format"}), _FORMATTING):
                return True
    return False


def branch_at(place: Location) -> Branch | None:
    """The branch whose test stands on this line and, as far as one can tell, reads the value."""
    statement = statement_at(place.file, place.line)
    if statement is None:
        return None
    tests = {id(node) for node in _all_tests(statement)}
    for node in _branch_nodes(statement):
        test = _tests(node)[0]
        if not _holds(test, place.line):
            continue
        rest_reads = any(
            _is_reading(other) and _holds(other, place.line)
            for other in ast.walk(statement)
            if id(other) not in tests
        )
        if _reads(test) or not rest_reads:
            return _branch(place.file, node, test)
    return None


def branches_on(scope: _Scope, file: str, names: frozenset[str]) -> Iterator[Branch]:
    """The branches of a function whose tests mention one of these names."""
    for node in ast.walk(scope):
        for test in _tests(node):
            if names & names_in(test):
                yield _branch(file, node, test)


def enclosing_branches(place: Location) -> Iterator[Branch]:
    """The `if`, `while` and `for` statements around a line within its function, outermost first."""
    scope = scope_at(place.file, place.line)
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, (ast.If, ast.While, ast.For)) and _holds(node, place.line):
            test = node.iter if isinstance(node, ast.For) else node.test
            if not _holds(test, place.line):
                yield _branch(place.file, node, test)


def jumps_before(place: Location) -> list[Branch]:
    """The branches above a line of its function that may leave, so that the line is not reached."""
    scope = scope_at(place.file, place.line)
    found = (
        _branch(place.file, node, node.test)
        for node in (ast.walk(scope) if scope is not None else ())
        if isinstance(node, ast.If) and (node.end_lineno or node.lineno) < place.line
    )
    return [branch for branch in found if branch.jumps]


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


def names_in(node: ast.AST) -> frozenset[str]:
    """The names and dotted names that an expression or statement mentions."""
    return frozenset(
        ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))
    )


def statements_of(scope: _Scope) -> list[ast.stmt]:
    """All statements of a function, by line."""
    found = [node for node in ast.walk(scope) if isinstance(node, ast.stmt) and node is not scope]
    return sorted(found, key=lambda node: node.lineno)


def _bound(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _bound(part)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield ast.unparse(target)


def _holds(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def _branches_here(node: ast.stmt, line: int) -> bool:
    return isinstance(node, (ast.If, ast.While)) and _holds(node.test, line)


def _tests(node: ast.AST) -> list[ast.expr]:
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


def _branch_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Branching nodes of a statement's own expressions, not those of statements inside it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        if _tests(node):
            yield node
        todo += [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]


def _all_tests(statement: ast.stmt) -> Iterator[ast.AST]:
    for node in _branch_nodes(statement):
        for test in _tests(node):
            yield from ast.walk(test)


def _calls(node: ast.Call, methods: frozenset[str], builtins: frozenset[str]) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in methods
    return isinstance(node.func, ast.Name) and node.func.id in builtins


def _is_reading(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _calls(node, _READING_METHODS, _READING_BUILTINS)


def _reads(node: ast.AST) -> bool:
    return any(_is_reading(part) for part in ast.walk(node))


_KINDS = {
    ast.If: "if",
    ast.While: "while",
    ast.Assert: "assert",
    ast.IfExp: "conditional expression",
    ast.comprehension: "comprehension",
    ast.BoolOp: "and/or",
    ast.Match: "match",
    ast.For: "for",
}


def _branch(file: str, node: ast.AST, test: ast.expr) -> Branch:
    kind = _KINDS[type(node)]
    text = ast.unparse(test)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    shown = {"if": "if {}:", "while": "while {}:", "assert": "assert {}", "for": "for ... in {}:"}
    return Branch(
        file=file,
        line=getattr(node, "lineno", test.lineno),
        kind=kind,
        text=shown.get(kind, "{}").replace("{}", text),
        body=_lines(getattr(node, "body", None)),
        orelse=_lines(getattr(node, "orelse", None)),
        jumps=isinstance(node, ast.If) and (_leaves(node.body) or _leaves(node.orelse)),
    )


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Continue, ast.Break, ast.Raise))


def _lines(body: object) -> tuple[int, int] | None:
    if not isinstance(body, list) or not body:
        return None
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno
