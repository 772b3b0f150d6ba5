"""An expression that runs -> whether what it gives is only shown to somebody: printed, logged, or thrown away.

Much of what a step asks for, draws and counts goes to its log alone, which no replay needs. Nobody can try all
answers, but code can be read: from the expression on, through the names that are bound to what comes of it, to
the branches that it decides. Whatever is not known to be harmless is taken to be used.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Literal

from graphdoctor.record.host.expressions import (
    Function,
    expression_of,
    function_of,
    is_in,
    owner_in,
    parents_in,
    statements_around,
)
from graphdoctor.record.host.harmless import THROUGH, Calls
from graphdoctor.target.frames import calls_step, is_machinery

_Outcome = Literal["shown", "returned", "used"]
_ONLY_IN_PLACE = (ast.LShift, ast.RShift, ast.MatMult)  # written for what they do, as into a stream
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_UNREADABLE = frozenset({"locals", "vars", "eval", "exec", "globals", "_getframe"})
_IN_PLACE = frozenset(
    ["shuffle", "readinto", "readinto1", "recv_into", "recvfrom_into", "readv", "preadv", "seed"]
)


class Shown:
    """Tells of expressions in running frames; what was found for one is kept."""

    def __init__(self) -> None:
        self._known: dict[object, bool] = {}

    def is_only_shown(self, frame: FrameType | None, node: ast.AST | None = None) -> bool:
        """What a user's frame calls just now, or what is at a node of its line."""
        stack = list(_users(frame))
        key = (node, *((one.f_code, one.f_lasti) for one in stack))
        if key not in self._known:
            self._known[key] = _is_only_shown(stack, [node] if node is not None else None)
        return self._known[key]

    def argument_of(self, frame: FrameType) -> object:
        """What is given first in the call that a user's frame makes just now, where that can be told."""
        call = expression_of(frame)
        function = function_of(frame.f_code, frame.f_lineno)
        if not isinstance(call, ast.Call) or not call.args or function is None:
            return None
        return Calls(frame).resolved(call.args[0])

    def is_draw_only_shown(self, frame: FrameType | None, line: int) -> bool:
        """What NumPy's generators gave on a line of a user's frame, which nobody saw being called."""
        stack = list(_users(frame))
        key = (line, *((one.f_code, one.f_lasti) for one in stack[1:]))
        if key not in self._known:
            draws = _draws_of_line(stack[0], line) if stack else []
            self._known[key] = bool(draws) and _is_only_shown(stack, draws)
        return self._known[key]


def _users(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those around it, up to where the step is called, without torch's and Python's own."""
    while frame is not None and not calls_step(frame.f_code):
        if not is_machinery(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _draws_of_line(frame: FrameType, line: int) -> list[ast.Call]:
    """The calls of NumPy's generators on a line, where no other call could draw; else none."""
    function = function_of(frame.f_code, line)
    if function is None:
        return []
    known = Calls(frame)
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    calls = [one for one in calls if one.lineno <= line <= (one.end_lineno or line)]
    draws = [one for one in calls if known.draws_by_numpy(one)]
    is_clear = all(one in draws or known.is_harmless_call(one) for one in calls)
    return draws if is_clear else []


def _is_only_shown(stack: Sequence[FrameType], nodes: Sequence[ast.AST] | None) -> bool:
    for at, frame in enumerate(stack):
        if nodes is None:
            found = expression_of(frame)
            nodes = [found] if found is not None else []
        function = function_of(frame.f_code, frame.f_lineno if not nodes else nodes[0].lineno)  # type: ignore[attr-defined]
        if function is None or not nodes:
            return False
        outcome = _Flow(function, frame).of(nodes)
        if outcome == "shown":
            return not any(map(_may_catch, stack[at + 1 :]))
        is_called_directly = at + 1 < len(stack) and frame.f_back is stack[at + 1]
        if outcome == "used" or not is_called_directly or not _calls(stack[at + 1], frame.f_code):
            return False
        nodes = None
    return False


def _calls(frame: FrameType, code: CodeType) -> bool:
    """Whether a frame calls that code by its name, and not something in C that calls it."""
    call = expression_of(frame)
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == code.co_name and not code.co_flags & _SUSPENDED


def _may_catch(frame: FrameType) -> bool:
    """Whether a frame may go another way where what it calls raises."""
    node = expression_of(frame)
    function = function_of(frame.f_code, frame.f_lineno)
    if node is None or function is None:
        return True
    return any(
        (isinstance(one, ast.Try) and one.handlers and is_in(node, one.body))
        or (isinstance(one, ast.With) and not _Flow(function, frame).lets_through(one))
        for one in statements_around(function, node)
    )


class _Flow:
    """Follows what an expression gives through one function of a frame."""

    def __init__(self, function: Function, frame: FrameType) -> None:
        self._function, self._frame = function, frame
        self._parents = parents_in(function)
        self._names: dict[str, None] = {}
        self._calls = Calls(frame, self._names)
        self._is_returned = False

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

    def lets_through(self, held: ast.With) -> bool:
        """Whether what is raised inside comes out of a block."""
        for item in held.items:
            call = item.context_expr
            found = self._calls.resolved(call.func if isinstance(call, ast.Call) else call)
            module = getattr(found if isinstance(call, ast.Call) else type(found), "__module__", "")
            is_known = str(module).partition(".")[0] in ("torch", "_thread", "threading")
            if not is_known and not _is_open(call):
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
            self._expect(_is_open(node))
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
            elif isinstance(one, ast.Expr):
                if not self._calls.is_pure(one.value):
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


def _is_open(node: ast.AST) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return getattr(func, "attr", getattr(func, "id", "")) == "open"


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    return (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
