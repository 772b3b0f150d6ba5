"""A line of Python -> whether a call of a training step's glue is written there."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

from graphdoctor.values.report import Location

_GLUE = frozenset({"step", "unscale_", "update", "update_parameters"})
_READING = frozenset({"item", "tolist"})
_CLIPPING = "clip_grad_norm_"
_ERROR_IF_NONFINITE = 3  # its place among clip_grad_norm_'s arguments


def has_glue_call(place: Location) -> bool:
    """Whether an optimizer, schedule or scaler may be called here, or clipping that reads the norm."""
    return any(_is_glue(call) for call in _calls_at(place.file, place.line))


def has_reading_call(place: Location) -> bool:
    """Whether a tensor's value is read here by a method."""
    return any(_name(call) in _READING for call in _calls_at(place.file, place.line))


def _is_glue(call: ast.Call) -> bool:
    name = _name(call)
    if name == _CLIPPING:
        named = any(keyword.arg == "error_if_nonfinite" for keyword in call.keywords)
        return named or len(call.args) > _ERROR_IF_NONFINITE
    return name in _GLUE and isinstance(call.func, ast.Attribute)


def _name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@lru_cache(maxsize=1024)
def _calls_at(file: str, line: int) -> tuple[ast.Call, ...]:
    """The calls whose text covers a line."""
    return tuple(
        call for call in _calls_in(file) if call.lineno <= line <= (call.end_lineno or call.lineno)
    )


@lru_cache(maxsize=64)
def _calls_in(file: str) -> tuple[ast.Call, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))
