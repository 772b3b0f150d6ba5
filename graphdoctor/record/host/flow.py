"""What an expression gives, followed through one function: shown, returned, or used for what the step computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Literal

from graphdoctor.record.host.expressions import (
    Function,
    is_in,
    owner_in,
    parents_in,
    statements_around,
)
from graphdoctor.record.host.harmless import MISSING, THROUGH, Calls

_Outcome = Literal["shown", "returned", "used"]
_ONLY_IN_PLACE = (ast.LShift, ast.RShift, ast.MatMult)  # written for what they do, as into a stream
_OPENERS = frozenset({"_io", "bz2", "gzip", "lzma"})
_LEAVES = (ast.Return, ast.Break, ast.Continue)
_UNREADABLE = frozenset({"locals", "vars", "eval", "exec", "globals", "_getframe"})
_IN_PLACE = frozenset(
    [
        "shuffle",
        "reload",
        "readinto",
        "readinto1",
        "recv_into",
        "recvfrom_into",
        "readv",
        "preadv",
        "seed",
    ]
)


class Flow:
    """Follows what an expression gives through one function of a frame."""

    def __init__(
        self, function: Function, frame: FrameType, *, asks_by_itself: bool = True
    ) -> None:
        self._function, self._frame = function, frame
        self._parents = parents_in(function)
        self._names: dict[str, None] = {}
        self._calls = Calls(frame, self._names, asks_by_itself=asks_by_itself)
        self._is_returned = False
        self._may_return = False

    def of(self, nodes: Sequence[ast.AST]) -> _Outcome:
        walked = [one for one in ast.walk(self._function) if isinstance(one, ast.Name)]
        if any(one.id in _UNREADABLE for one in walked):
            return "used"
        try:
            for node in nodes:
                self._expect(not _writes_into_arguments(node))
                self._follow(node)
            done: set[str] = set()
            while rest := [name for name in self._names if name not in done]:
                done.update(rest)
                for one in walked:
                    if one.id in rest and isinstance(one.ctx, ast.Load):
                        self._follow(one)
                    elif one.id in rest:  # what it names may be written to in place
                        self._expect(not isinstance(self._parents.get(one), ast.AugAssign))
        except _UsedError:
            return "used"
        return "returned" if self._is_returned else "shown"

    def only_asks(self) -> bool:
        """Whether it makes no difference that the function is called, or stops halfway through."""
        self._may_return = True
        try:
            return self._is_harmless(self._function.body)
        except _UsedError:
            return False
        finally:
            self._may_return = False

    def lets_through(self, held: ast.With) -> bool:
        """Whether what is raised inside comes out of a block."""
        for item in held.items:
            call = item.context_expr
            found = self._calls.resolved(call.func if isinstance(call, ast.Call) else call)
            module = getattr(found if isinstance(call, ast.Call) else type(found), "__module__", "")
            is_known = str(module).partition(".")[0] in ("torch", "_thread", "threading")
            if not is_known and not self._is_open(call):
                return False
        return True

    def _follow(self, node: ast.AST) -> None:
        if owner_in(self._parents, node) is not self._function:
            raise _UsedError
        self._check_around(node)
        while (parent := self._parents.get(node)) is not None and not isinstance(node, ast.stmt):
            if not self._goes_on(node, parent):
                return
            node = parent
        raise _UsedError

    def _goes_on(self, node: ast.AST, parent: ast.AST) -> bool:
        """Whether what holds it is something computed from it; False where it ends there."""
        if isinstance(parent, THROUGH):
            if isinstance(parent, ast.BinOp) and isinstance(parent.op, _ONLY_IN_PLACE):
                raise _UsedError
            if isinstance(getattr(parent, "ctx", None), (ast.Store, ast.Del)):
                raise _UsedError
            others = (one for one in _operands(parent) if one is not node)
            self._expect(all(map(self._calls.is_pure, others)))
        elif isinstance(parent, ast.Attribute):
            self._expect(isinstance(parent.ctx, ast.Load))
        elif isinstance(parent, ast.keyword):
            pass
        elif isinstance(parent, ast.Call):
            self._expect(self._calls.takes_harmlessly(parent, node))
        elif isinstance(parent, ast.NamedExpr):
            self._bind(parent.target)
        else:
            self._end(node, parent)
            return False
        return True

    def _end(self, node: ast.AST, parent: ast.AST) -> None:
        if isinstance(parent, ast.Assign):
            for target in parent.targets:
                self._bind(target)
        elif isinstance(parent, ast.AnnAssign):
            self._bind(parent.target)
        elif isinstance(parent, ast.If):
            self._expect(self._is_harmless([*parent.body, *parent.orelse]))
        elif isinstance(parent, ast.For) and node is parent.iter:
            self._bind(parent.target)
            self._expect(self._is_harmless([*parent.body, *parent.orelse]))
        elif isinstance(parent, ast.withitem):
            self._expect(self._is_open(node))
            if parent.optional_vars is not None:
                self._bind(parent.optional_vars)
        elif isinstance(parent, ast.Return):
            self._is_returned = True
        else:
            self._expect(isinstance(parent, (ast.Expr, ast.Assert)))

    def _bind(self, target: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bind(each)
            return
        self._expect(isinstance(target, ast.Name) and self._is_local(target.id))
        self._names.setdefault(target.id)  # type: ignore[attr-defined]

    def _is_local(self, name: str) -> bool:
        for node in ast.walk(self._function):
            if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
                return False
        return True

    def _check_around(self, node: ast.AST) -> None:
        """It may raise: what would catch that has to be harmless as a whole."""
        for one in statements_around(self._function, node):
            self._expect(not leaves_at_last(one))
            if isinstance(one, ast.Try) and one.handlers and not is_in(node, one.finalbody):
                parts = [*one.body, *one.orelse, *(s for h in one.handlers for s in h.body)]
                self._expect(self._is_harmless(parts))
            elif isinstance(one, ast.With):
                self._expect(self.lets_through(one))
            elif isinstance(one, (ast.While, ast.Match, ast.TryStar)):
                raise _UsedError

    def _is_harmless(self, block: Sequence[ast.stmt]) -> bool:
        """Whether it makes no difference for the rest of the step whether these statements run."""
        for one in block:
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    self._bind(target)
                if one.value is not None and not self._calls.is_pure(one.value):
                    return False
            elif isinstance(one, ast.If):
                both = [*one.body, *one.orelse]
                if not self._calls.is_pure(one.test) or not self._is_harmless(both):
                    return False
            elif isinstance(one, ast.With):
                if not all(map(self._opens, one.items)) or not self._is_harmless(one.body):
                    return False
            elif isinstance(one, ast.Expr) or (isinstance(one, ast.Return) and self._may_return):
                if one.value is not None and not self._calls.is_pure(one.value):
                    return False
            elif not isinstance(one, ast.Pass):
                return False
        return True

    def _opens(self, item: ast.withitem) -> bool:
        """Whether it opens a file, which is a question of its own."""
        if item.optional_vars is not None:
            self._bind(item.optional_vars)
        call = item.context_expr
        is_open = isinstance(call, ast.Call) and self._calls.resolved(call.func) is open
        return is_open and all(map(self._calls.is_pure, [*call.args, *call.keywords]))  # type: ignore[attr-defined]

    def _is_open(self, node: ast.AST) -> bool:
        """Whether it is Python's own way to open a file."""
        if not isinstance(node, ast.Call):
            return False
        found = self._calls.resolved(node.func)
        if found is not MISSING:
            return found is open or getattr(found, "__module__", "") in _OPENERS
        func = node.func
        return (
            isinstance(func, ast.Attribute)
            and func.attr == "open"
            and self._calls.is_path(func.value)
        )

    def _expect(self, is_so: bool) -> None:
        if not is_so:
            raise _UsedError


class _UsedError(Exception):
    """It may reach what the step computes."""


def _writes_into_arguments(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in _IN_PLACE or any(one.arg in ("out", None) for one in node.keywords)


def leaves_at_last(node: ast.AST) -> bool:
    """Whether it goes on somewhere else after anything was raised."""
    last = node.finalbody if isinstance(node, (ast.Try, ast.TryStar)) else []
    return any(isinstance(one, _LEAVES) for statement in last for one in ast.walk(statement))


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    return (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
