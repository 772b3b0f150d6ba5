"""An expression of a counter, without names and calls -> what it gives, and after how many steps its truth changes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

COUNT = "count of steps"  # no name that code can have
STEPS_AHEAD = 100_000
_POWER = "power of numbers"
_MOST_BITS = 4096
_MOST_KNOWN = 1024


class Ahead(NamedTuple):
    steps: int | None  # None: never, as far as was looked
    becomes: bool


_KNOWN: dict[object, Ahead | None] = {}  # a line in a loop asks the same each time


def ahead_of(rest: ast.AST, now: object, growth: int | float | None) -> Ahead | None:
    """When the truth of an expression changes; None where that cannot be computed."""
    key = (ast.dump(rest), repr(now), repr(growth))
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = _computed_ahead(rest, now, growth)
    return _KNOWN[key]


def _computed_ahead(rest: ast.AST, now: object, growth: int | float | None) -> Ahead | None:
    if growth is None or not isinstance(now, (int, float)):
        return None
    try:
        function = _function_of(rest)

        def truth(count: object) -> bool:
            return bool(function(count))

        here = truth(now)
        later = (steps for steps in range(1, STEPS_AHEAD) if truth(now + steps * growth) != here)
        return Ahead(next(later, None), not here)
    except Exception:  # numbers that cannot be compared, or are too large
        return None


def gives(rest: ast.AST, now: object, value: object) -> bool:
    """Whether it is this value while the counter stands so."""
    try:
        return bool(_function_of(rest)(now) == value)
    except Exception:
        return False


def _function_of(rest: ast.AST) -> Callable[[object], object]:
    """What an expression without calls gives, by the counter."""
    bounded = ast.Expression(_Bounded().visit(deepcopy(rest)))
    code = compile(ast.fix_missing_locations(bounded), "<decision>", "eval")
    return lambda count: eval(code, {"__builtins__": {}, _POWER: _power}, {COUNT: count})


def counted_earlier(rest: ast.AST, counted: float) -> ast.AST:
    """The same of the counter as it was before."""
    return _Earlier(counted).visit(deepcopy(rest))  # type: ignore[no-any-return]


class _Earlier(ast.NodeTransformer):
    def __init__(self, counted: float) -> None:
        self._counted = counted

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not self._counted or node.id != COUNT:
            return node
        return ast.BinOp(node, ast.Sub(), ast.Constant(self._counted))


class _Bounded(ast.NodeTransformer):
    """Powers and shifts by way of `_power`: whole numbers grow without an end in them."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, (ast.Pow, ast.LShift)):
            return node
        base = node.left
        if isinstance(node.op, ast.LShift):
            base = ast.Constant(2)
        power: ast.expr = ast.Call(ast.Name(_POWER, ast.Load()), [base, node.right], [])
        if isinstance(node.op, ast.LShift):
            power = ast.BinOp(node.left, ast.Mult(), power)
        return ast.copy_location(power, node)


def _power(base: Any, exponent: Any) -> Any:
    are_whole = isinstance(base, int) and isinstance(exponent, int)
    if are_whole and abs(base) > 1 and abs(base).bit_length() * abs(exponent) > _MOST_BITS:
        raise OverflowError
    return base**exponent
