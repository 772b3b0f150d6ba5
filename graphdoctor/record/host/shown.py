"""An expression that runs -> whether what it gives is only shown to somebody: printed, logged, or thrown away.

Much of what a step asks for, draws and counts goes to its log alone, which no replay needs. Nobody can try all
answers, but code can be read: from the expression on, through the names that are bound to what comes of it, to
the branches that it decides. Whatever is not known to be harmless is taken to be used.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, ModuleType

from graphdoctor.record.host.expressions import (
    expression_of,
    function_of,
    is_in,
    parents_in,
    statements_around,
)
from graphdoctor.record.host.flow import Flow, leaves_at_last
from graphdoctor.record.host.harmless import Calls
from graphdoctor.target.frames import calls_step, is_machinery

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Shown:
    """Tells of expressions in running frames. What is shown now may be used another time, and is looked at again."""

    def __init__(self) -> None:
        self._used: set[object] = set()

    def is_only_shown(self, frame: FrameType | None, node: ast.AST | None = None) -> bool:
        """What a user's frame calls just now, or what is at a node of its line."""
        stack = list(_users(frame))
        key = (node, *((one.f_code, one.f_lasti) for one in stack))
        nodes = [node] if node is not None else None
        if key not in self._used and not _is_only_shown(stack, nodes):
            self._used.add(key)
        return key not in self._used

    def argument_of(self, frame: FrameType) -> object:
        """What is given first in the call that a user's frame makes just now, where that can be told."""
        call = expression_of(frame)
        function = function_of(frame.f_code, frame.f_lineno)
        if not isinstance(call, ast.Call) or not call.args or function is None:
            return None
        return Calls(frame).resolved(call.args[0])

    def is_draw_only_shown(self, frame: FrameType | None, line: int) -> bool:
        """What generators gave on a line of a user's frame, of which nobody saw a call, as of NumPy's."""
        stack = list(_users(frame))
        key = (line, *((one.f_code, one.f_lasti) for one in stack[1:]))
        if key not in self._used:
            draws = _draws_of_line(stack[0], line) if stack else []
            if not draws or not _is_only_shown(stack, draws):
                self._used.add(key)
        return key not in self._used


def keeps_answer(frame: FrameType) -> bool:
    """Whether a frame calls a method of an object just now, and not for what it gives: `config.read(path)`."""
    call = expression_of(frame)
    function = function_of(frame.f_code, frame.f_lineno)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if function is None or not isinstance(parents_in(function).get(call), ast.Expr):
        return False
    known = Calls(frame)
    is_of_module = isinstance(known.resolved(call.func.value), ModuleType)
    return not is_of_module and not known.is_path(call.func.value)


def _users(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those around it, up to where the step is called, without torch's and Python's own."""
    while frame is not None and not calls_step(frame.f_code):
        if not is_machinery(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _draws_of_line(frame: FrameType, line: int) -> list[ast.Call]:
    """The calls on a line that draw and that nobody saw, where no other call could draw; else none."""
    function = function_of(frame.f_code, line)
    if function is None:
        return []
    known = Calls(frame)
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    calls = [one for one in calls if one.lineno <= line <= (one.end_lineno or line)]
    draws = [one for one in calls if known.draws_unseen(one)]
    is_clear = all(one in draws or known.is_harmless_call(one) for one in calls)
    return draws if is_clear else []


def _is_only_shown(stack: Sequence[FrameType], nodes: Sequence[ast.AST] | None) -> bool:
    asks_by_itself = True
    for at, frame in enumerate(stack):
        if nodes is None:
            found = expression_of(frame)
            nodes = [found] if found is not None else []
        function = function_of(frame.f_code, frame.f_lineno if not nodes else nodes[0].lineno)  # type: ignore[attr-defined]
        if function is None or not nodes:
            return False
        flow = Flow(function, frame, asks_by_itself=asks_by_itself)
        outcome = flow.of(nodes)
        if outcome == "shown":
            return not any(map(_may_catch, stack[at + 1 :]))
        around = stack[at + 1 : at + 2]  # nothing is around the step itself
        if outcome == "used" or frame.f_back not in around or not _calls(around[0], frame.f_code):
            return False
        nodes, asks_by_itself = None, asks_by_itself and flow.only_asks()
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
        or leaves_at_last(one)
        or (isinstance(one, ast.With) and not Flow(function, frame).lets_through(one))
        for one in statements_around(function, node)
    )
