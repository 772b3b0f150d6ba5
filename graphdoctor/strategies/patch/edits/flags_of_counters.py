"""Gives a captured step the value of a test of the loop's counter, as in `if (i + 1) % passes == 0`.

A number that differs in each call would give each call another signature. Two values of a flag are two graphs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.strategies.patch.source import Place
from graphdoctor.strategies.patch.step_parts import Group, called, replaced
from graphdoctor.target.program.names import Names, names_in_file

_NAMES = ("is_due", "is_last")
_RANGES = ("range", "trange")


def with_flags(group: Group, around: Iterable[ast.stmt], text: str) -> tuple[Group, dict[str, str]]:
    """The group with names for such tests, and the test behind each; as it is if it reads a counter elsewhere, too.

    `around` are the statements that hold the group, and `text` that of the file.
    """
    counters = {name for holder in around for name in _counters(holder)}
    stored, taken = group.names.stored, names_in_file(text)
    flags: dict[str, str] = {}
    places: list[Place] = []
    for branch in ast.walk(ast.parse(group.code)):
        if not isinstance(branch, ast.If) or not _is_of(counters, branch.test, stored):
            continue
        names = ("is_update", *_NAMES) if "step" in called(branch) else _NAMES
        name = next((each for each in names if each not in taken and each not in flags), "")
        test = branch.test
        code = ast.get_source_segment(group.code, test)
        if not name or code is None or test.lineno != test.end_lineno:
            return group, {}
        flags[name] = code if _is_flag(test) else f"bool({code})"
        places.append((test.lineno, test.col_offset, test.end_col_offset or 0, name))
    made = replaced(group, places)
    return (made, flags) if flags and not made.names.loaded & counters else (group, {})


def _counters(holder: ast.stmt) -> Iterator[str]:
    """What a loop counts: the variable of a `range()`, the first of an `enumerate()`, and what it adds a number to."""
    if isinstance(holder, ast.For):
        makers = {last_name(call.func) for call in calls_in(holder.iter)}
        target = holder.target
        if isinstance(target, ast.Tuple) and "enumerate" in makers:
            target = target.elts[0]
        elif not makers.intersection(_RANGES):
            target = ast.Tuple([])
        if isinstance(target, ast.Name):
            yield target.id
    for node in ast.walk(holder):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), value=ast.Constant(value=int())):
                yield name


def _is_flag(test: ast.expr) -> bool:
    """Whether its value is true or false, and no number that counts as one of them."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_flag, test.values))
    return isinstance(test, ast.Compare) or (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    )


def _is_of(counters: set[str], test: ast.expr, stored: set[str]) -> bool:
    """Whether a test reads a counter, and only what is known before the statements."""
    names = Names([ast.Expr(test)])
    is_plain = all(ast.unparse(call.func) == "len" for call in calls_in(test))
    is_known = not names.loaded & stored and not names.stored
    return is_plain and is_known and bool(names.loaded & counters)
