"""A value that each step changes, and a line that runs -> what of the line is decided by it, and when otherwise.

`later.py` runs steps from states that lie ahead, and sees however a decision is spelled. It cannot try every
state: a condition that is read here has its exact step, or is known to be unknown. So this comes first, and
later steps are run where nothing was found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from graphdoctor.record.host.ahead import COUNT, ahead_of, counted_earlier, gives
from graphdoctor.record.host.bindings import bindings_of
from graphdoctor.record.host.expressions import function_of
from graphdoctor.source.trees import tree_of
from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.plain import SCALARS

_MISSING = object()


class Counter(NamedTuple):
    """A value by what holds it and what code calls it; `growth` is what each step adds, None if not the same."""

    holder: object
    name: str  # an attribute's or a variable's
    key: object  # of what stands in a container, or None
    is_length: bool  # it is the number of what the value of that name holds
    growth: int | float | None


class Decision(NamedTuple):
    """`code` is decided by a counter. After `steps` more it `becomes` another truth; None where that is unknown."""

    code: str
    node: ast.expr
    steps: int | None
    becomes: bool | None


def decisions_at(frame: FrameType, counter: Counter, now: object) -> Iterator[Decision]:
    """What the line that a frame runs next decides by a counter; not what stays as it is for very long."""
    for expression in _by_line(frame.f_code.co_filename).get(frame.f_lineno, ()):
        resolved = _Resolved(frame, counter, now)
        rest = resolved.visit(deepcopy(expression))
        if not resolved.has_counter:
            continue
        code = ast.unparse(expression)
        ahead = ahead_of(rest, now, counter.growth) if resolved.is_plain else None
        if ahead is None:
            yield Decision(code, expression, None, None)
        elif ahead.steps is not None:
            yield Decision(code, expression, ahead.steps, ahead.becomes)


@lru_cache(maxsize=256)
def _by_line(file: str) -> dict[int, list[ast.expr]]:
    """The expressions of a file that decide something, by their line; assertions are for nobody's replay."""
    found: dict[int, list[ast.expr]] = {}
    tree = tree_of(file)
    waiting: list[ast.AST] = [tree] if tree is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assert):
            continue
        decides = isinstance(node, ast.Compare)
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            for leaf in _leaves(node.test):
                found.setdefault(leaf.lineno, []).append(leaf)
            rest = ast.iter_child_nodes(node)
            waiting.extend(each for each in rest if each is not node.test)
        elif decides:
            found.setdefault(node.lineno, []).append(node)  # type: ignore[attr-defined, arg-type]
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _leaves(test: ast.expr) -> Iterator[ast.expr]:
    """What `and`, `or` and `not` put together."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand)
    else:
        yield test


class _Resolved(ast.NodeTransformer):
    """An expression with numbers in the place of names, found without running any code of the user's."""

    def __init__(self, frame: FrameType, counter: Counter, now: object) -> None:
        self._frame = frame
        self._counter = counter
        self._now = now
        self._bindings = bindings_of(function_of(frame.f_code, frame.f_lineno))
        self.has_counter = False
        self.is_plain = True

    def visit(self, node: ast.AST) -> ast.AST:
        if self._is_counter(node):
            self.has_counter = True
            return ast.copy_location(ast.Name(COUNT, ast.Load()), node)
        if isinstance(node, ast.Name) and (behind := self._behind(node)) is not None:
            self.has_counter = True
            return ast.copy_location(behind, node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = self._value(node)
            if not isinstance(value, SCALARS):
                self.is_plain = False
                # Its parts may still name the counter.
                return self.generic_visit(node) if isinstance(node, ast.Attribute) else node
            return ast.copy_location(ast.Constant(_exact(value)), node)
        if isinstance(node, (ast.Call, ast.Subscript, ast.NamedExpr, ast.Await, ast.Lambda)):
            self.is_plain = False
        return self.generic_visit(node)

    def _is_counter(self, node: ast.AST) -> bool:
        counter = self._counter
        if counter.is_length:
            is_len = isinstance(node, ast.Call) and ast.unparse(node.func) == "len"
            if is_len and len(node.args) == 1:  # type: ignore[attr-defined]
                return self._is_named(node.args[0])  # type: ignore[attr-defined]
        if counter.key is not None:
            if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
                return False
            return node.slice.value == counter.key and self._value(node.value) is counter.holder
        return self._is_named(node)

    def _behind(self, name: ast.Name) -> ast.AST | None:
        """What a variable was computed by, of the counter as it was then: `k` after `k = self.n`."""
        expression = self._bindings.only_value_of(name.id)
        if expression is None or name.id not in self._frame.f_locals:
            return None
        inner = _Resolved(self._frame, self._counter, self._now)
        rest = inner.visit(deepcopy(expression))
        if not inner.has_counter or not inner.is_plain:
            return None
        value = self._frame.f_locals[name.id]
        growth = self._counter.growth or 0
        both = (rest, counted_earlier(rest, growth))  # it may have been counted on since
        is_told = type(value) in SCALARS
        return next((one for one in both if is_told and gives(one, self._now, value)), None)

    def _is_named(self, node: ast.AST) -> bool:
        holder, name = self._counter.holder, self._counter.name
        if isinstance(node, ast.Name) and isinstance(holder, FunctionType):
            return node.id == name and name not in self._frame.f_code.co_varnames
        if not isinstance(node, ast.Attribute) or node.attr != name:
            return False
        base = self._value(node.value)
        return base is holder or (isinstance(holder, type) and holder in type(base).__mro__)

    def _value(self, node: ast.AST) -> object:
        if isinstance(node, ast.Name):
            namespaces = (self._frame.f_locals, self._frame.f_globals)
            return next((names[node.id] for names in namespaces if node.id in names), _MISSING)
        if isinstance(node, ast.Attribute):
            return _attribute(self._value(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return _item(self._value(node.value), node.slice.value)
        return _MISSING


def _attribute(value: object, name: str) -> object:
    own = attributes(value)
    if name in own:
        return own[name]
    if isinstance(value, torch.nn.Module) and name in value._modules:
        return value._modules[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        found = vars(kind).get(name, _MISSING)
        if found is not _MISSING:
            return found if isinstance(found, SCALARS) else _MISSING
    return _MISSING


_READ: dict[type, Any] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda value: str.__getitem__(value, slice(None)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}


def _exact(value: Any) -> Any:
    """A number or text without the class that it is of, such as np.float64 or an IntEnum: code holds no others."""
    if type(value) in SCALARS:
        return value
    kind = next(kind for kind in type(value).__mro__ if kind in SCALARS)
    return _READ[kind](value)


def _item(value: object, key: Any) -> object:
    """What stands in a container of Python's own, whose lookup is no code of the user's."""
    if isinstance(value, dict):
        return dict.get(value, key, _MISSING)
    if not isinstance(key, int):
        return _MISSING
    if isinstance(value, list) and 0 <= key < list.__len__(value):
        return list.__getitem__(value, key)
    if isinstance(value, tuple) and 0 <= key < tuple.__len__(value):
        return tuple.__getitem__(value, key)
    return _MISSING
