"""A tensor that each step replaces -> the statement that binds the new one, and the same statement in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.source import assigned_to, names_in
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Iteration, Op, Recording


class Rebinding(Struct, frozen=True):
    """`code` binds a new tensor to `name`; `fix` writes into the tensor that is there."""

    name: str
    code: str
    fix: str
    location: Location
    stack: tuple[Location, ...]


def rebinding_of(recording: Recording, found: Found) -> Rebinding | None:
    """The statement of the user that rebinds an attribute in each step."""
    iteration = next((each for each in recording.captured if each.index == found.second), None)
    difference = found.difference
    ops = [op for op in (difference.maker, difference.op) if op is not None]
    for attribute in _rebound(iteration) if iteration is not None else ():
        for frames in map(_frames, ops):
            for depth, frame in enumerate(frames):
                bound = None if is_library(frame.file) else assigned_to(frame, attribute)
                if bound is not None:
                    file, statement = bound
                    return Rebinding(
                        name=_named(statement, attribute),
                        code=shortened(ast.unparse(statement)),
                        fix=_fix(statement),
                        location=Location(file, statement.lineno, frame.function),
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


def _frames(op: Op) -> tuple[Location, ...]:
    return tuple(each for each in (op.location, *op.stack) if each is not None)


def _named(statement: ast.Assign, attribute: str) -> str:
    names = sorted(names_in(statement))
    return next((name for name in names if name.rpartition(".")[2] == attribute), attribute)


def _fix(statement: ast.Assign) -> str:
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        left, right = (
            [ast.unparse(each) for each in target.elts],
            [ast.unparse(each) for each in value.elts],
        )
        if len(left) == 2 and left == right[::-1]:
            code = f"old = {left[0]}.clone(); {left[0]}.copy_({right[0]}); {left[1]}.copy_(old)"
            return f"Exchange the contents instead of the tensors: `{code}`."
    if isinstance(target, ast.Tuple):
        states = [ast.unparse(each) for each in target.elts if isinstance(each, ast.Attribute)]
        copies = "; ".join(f"{state}.copy_(new_{state.rpartition('.')[2]})" for state in states)
        names = ", ".join(
            f"new_{each.attr}" if isinstance(each, ast.Attribute) else ast.unparse(each)
            for each in target.elts
        )
        return f"Copy in place instead of binding: `{names} = {ast.unparse(value)}; {copies}`."
    code = f"{ast.unparse(target)}.copy_({ast.unparse(value)})"
    return f"Copy in place instead of binding: `{code}`."
