"""Finds the branches on, around or above a line, and the one that an operator depends on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property, lru_cache

from msgspec import Struct

from graphdoctor.rules.causes.source import (
    is_reading,
    reads,
    statement_at,
    tests_of,
)
from graphdoctor.source.trees import (
    SyntaxScope,
    body_of_function,
    holds,
    leaves,
    scope_at,
    walk_until,
)
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import External, Iteration, Op, TensorUse


class Branch(Struct, frozen=True):
    """A place where a value picks the way: the test as written, the bodies as line ranges."""

    file: str
    line: int
    kind: str  # "if", "while", "assert", "conditional expression", ...
    text: str
    body: tuple[int, int] | None = None
    orelse: tuple[int, int] | None = None
    jumps: bool = False  # a side of it leaves: return, continue, break, raise
    ends_loop: bool = False  # a side of it breaks
    raises: bool = False  # its body ends with an error, or ends the program

    def holds(self, place: Location) -> bool:
        """Whether a line stands in a body of this branch."""
        sides = (lines for lines in (self.body, self.orelse) if lines is not None)
        return place.file == self.file and any(a <= place.line <= b for a, b in sides)

    @property
    def location(self) -> Location:
        return Location(self.file, self.line)


def branch_at(place: Location) -> Branch | None:
    """The branch whose test stands on this line and, as far as one can tell, reads the value."""
    statement = statement_at(place.file, place.line)
    if statement is None:
        return None
    apart = {id(node) for node in (*_all_tests(statement), *_message_of(statement))}
    for node in _branch_nodes(statement):
        test = tests_of(node)[0]
        if not holds(test, place.line):
            continue
        rest_reads = any(
            is_reading(other) and holds(other, place.line)
            for other in ast.walk(statement)
            if id(other) not in apart
        )
        if reads(test) or not rest_reads:
            return _branch(place.file, node, test)
    return None


def branches_on(scope: SyntaxScope, file: str, names: frozenset[str]) -> Iterator[Branch]:
    """The branches of a function whose tests mention one of these names."""
    for node in ast.walk(scope):
        for test in tests_of(node):
            if names & _names_decided_by(test, file):
                yield _branch(file, node, test)


def _names_decided_by(test: ast.expr, file: str) -> frozenset[str]:
    """The names whose values a test depends on: whether `x is None` does not hang on a number."""
    nodes = walk_until([test], lambda part: _asks_for_none(part, file))
    named = (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)))
    return frozenset(map(ast.unparse, named))


def _asks_for_none(node: ast.AST, file: str) -> bool:
    """`x is None`, `isinstance(x, int)`, or a call of the file's own function that only asks this."""
    if isinstance(node, ast.Compare):
        return all(isinstance(how, (ast.Is, ast.IsNot)) for how in node.ops)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id in ("isinstance", "callable", "hasattr"):
        return True
    body = body_of_function(file, node.func.id)
    asked = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    return isinstance(asked, ast.Compare) and _asks_for_none(asked, file)


@lru_cache(maxsize=4096)
def enclosing_branches(place: Location) -> tuple[Branch, ...]:
    """The `if`, `while` and `for` statements around a line within its function, outermost first."""
    return tuple(_enclosing(place))


def _enclosing(place: Location) -> Iterator[Branch]:
    scope = scope_at(place.file, place.line)
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, (ast.If, ast.While, ast.For)) and holds(node, place.line):
            test = node.iter if isinstance(node, ast.For) else node.test
            if not holds(test, place.line):
                yield _branch(place.file, node, test)


@lru_cache(maxsize=4096)
def jumps_before(place: Location) -> tuple[Branch, ...]:
    """The branches above a line of its function that may leave, so that the line is not reached."""
    scope = scope_at(place.file, place.line)
    found = (
        _branch(place.file, node, node.test)
        for node in (ast.walk(scope) if scope is not None else ())
        if isinstance(node, ast.If) and (node.end_lineno or node.lineno) < place.line
    )
    return tuple(branch for branch in found if branch.jumps)


def _branch_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Branching nodes of a statement's own expressions, not those of statements inside it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        if tests_of(node):
            yield node
        todo += [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]


def _all_tests(statement: ast.stmt) -> Iterator[ast.AST]:
    for node in _branch_nodes(statement):
        for test in tests_of(node):
            yield from ast.walk(test)


def _message_of(statement: ast.stmt) -> Iterator[ast.AST]:
    """What an `assert` evaluates only where it fails."""
    if isinstance(statement, ast.Assert) and statement.msg is not None:
        yield from ast.walk(statement.msg)


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
    text = shortened(ast.unparse(test))
    shown = {"if": "if {}:", "while": "while {}:", "assert": "assert {}", "for": "for ... in {}:"}
    return Branch(
        file=file,
        line=getattr(node, "lineno", test.lineno),
        kind=kind,
        text=shown.get(kind, "{}").replace("{}", text),
        body=_lines(getattr(node, "body", None)),
        orelse=_lines(getattr(node, "orelse", None)),
        jumps=isinstance(node, ast.If) and (leaves(node.body) or leaves(node.orelse)),
        ends_loop=isinstance(node, ast.If)
        and any(isinstance(side[-1], ast.Break) for side in (node.body, node.orelse) if side),
        raises=isinstance(node, ast.If) and _raises(node.body[-1]),
    )


def _raises(last: ast.stmt) -> bool:
    """Whether it raises, or ends the program, as training loops do if the loss is not finite."""
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Raise)


def _lines(body: object) -> tuple[int, int] | None:
    if not isinstance(body, list) or not body:
        return None
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno


def place_of_branch(branch: Branch, op: Op) -> tuple[Location, tuple[Location, ...]]:
    """The branch's line in its function, with the frames that called that function for an operator."""
    frames = tuple(frame for frame in (op.location, *op.stack) if frame is not None)
    for depth, frame in enumerate(frames):
        if frame.file == branch.file:
            return Location(branch.file, branch.line, frame.function), frames[depth + 1 :]
    return branch.location, op.stack


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
