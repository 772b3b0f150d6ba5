"""The statement that binds a new tensor in each step, and the same statement in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.edits import instead_of_statement
from graphdoctor.rules.causes.source import assigned_to, names_in
from graphdoctor.values.figures import shortened
from graphdoctor.values.finding import Edit
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Iteration, Recording


class Rebinding(Struct, frozen=True):
    """`code` binds a new tensor to `name`; `fix` writes into the tensor that is there."""

    name: str
    code: str
    fix: str
    edits: tuple[Edit, ...]
    location: Location
    stack: tuple[Location, ...]


def rebinding_of(recording: Recording, found: Found) -> Rebinding | None:
    """The statement of the user that rebinds an attribute in each step."""
    iteration = next((each for each in recording.captured if each.index == found.second), None)
    difference = found.difference
    ops = [op for op in (difference.maker, difference.op) if op is not None]
    for attribute in _rebound(iteration) if iteration is not None else ():
        for op in ops:
            frames = tuple(each for each in (op.location, *op.stack) if each is not None)
            for depth, frame in enumerate(frames):
                bound = None if is_library(frame.file) else assigned_to(frame, attribute)
                if bound is not None:
                    names = sorted(names_in(bound))
                    dotted = (name for name in names if name.rpartition(".")[2] == attribute)
                    return Rebinding(
                        name=next(dotted, attribute),
                        code=shortened(ast.unparse(bound)),
                        fix=_fix(bound),
                        edits=instead_of_statement(frame.file, bound, _code(bound)),
                        location=Location(frame.file, bound.lineno, frame.function),
                        stack=frames[depth + 1 :],
                    )
    return None


def _rebound(iteration: Iteration) -> Iterator[str]:
    """The names of the attributes that now hold another tensor."""
    names = (
        change.path.rpartition(".")[2]
        for change in iteration.changes
        if change.kind == "rebound-tensor" and change.path.rpartition(".")[2].isidentifier()
    )
    yield from dict.fromkeys(name for name in names if name not in ("grad", "data"))


def _fix(statement: ast.Assign) -> str:
    how = (
        "Exchange the contents instead of the tensors"
        if _is_swap(statement)
        else "Copy in place instead of binding"
    )
    return f"{how}: `{_code(statement)}`."


def _is_swap(statement: ast.Assign) -> bool:
    """`a, b = b, a`"""
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    left, right = ([ast.unparse(each) for each in part.elts] for part in (target, value))
    return len(left) == 2 and left == right[::-1]


def _code(statement: ast.Assign) -> str:
    """The same statement, which writes into the tensors that are there."""
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple):
        return f"{ast.unparse(target)}.copy_({ast.unparse(value)})"
    if _is_swap(statement):
        first, second = (ast.unparse(each) for each in target.elts)
        return f"old = {first}.clone(); {first}.copy_({second}); {second}.copy_(old)"
    states = [each for each in target.elts if isinstance(each, ast.Attribute)]
    copies = "; ".join(f"{ast.unparse(state)}.copy_(new_{state.attr})" for state in states)
    names = ", ".join(
        f"new_{each.attr}" if each in states else ast.unparse(each) for each in target.elts
    )
    return f"{names} = {ast.unparse(value)}; {copies}"
