"""Draws on the host for a function that a step calls, and gives it what was drawn as an argument.

`alpha = Tensor(np.random.random((x.size(0), 1)))` in a function of the file draws once, while the step is captured.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from graphdoctor.source.trees import last_name, walk_until
from graphdoctor.strategies.patch.drawn_batches import lines_with_comment
from graphdoctor.strategies.patch.source import At, Change, Instead, Place, with_places
from graphdoctor.strategies.patch.step_parts import Group, draws_tensor, replaced
from graphdoctor.target.program.names import Names

_LOOPS = (ast.For, ast.While, ast.comprehension, ast.Lambda, ast.FunctionDef)


def with_draws_given(
    group: Group, file: str, text: str
) -> tuple[Group, dict[str, str], tuple[Change, ...]]:
    """The group, the expression behind each argument that it gets, and the changes of the functions that drew it."""
    tree = ast.parse(text)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    drawn: dict[str, str] = {}
    changes: list[Change] = []
    for name, function in functions.items():
        named = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
        if len(named) != 1 or function.decorator_list:
            continue
        call = next(_calls(group, name), None)
        if call is None or (given := _given(function, call)) is None:
            continue
        taken = group.names.loaded | group.names.stored | {*drawn}
        for statement in function.body:
            if (expression := _drawn(statement, given, group, taken)) is None:
                continue
            assert isinstance(statement, ast.Assign)
            variable = ast.unparse(statement.targets[0])
            drawn[variable] = expression
            changes.append(_with_parameter(function, statement, variable, file, text))
            group = replaced(group, [_one_more(call.args[-1], variable)])
            break
    return group, drawn, tuple(changes)


def _calls(group: Group, name: str) -> Iterator[ast.Call]:
    """The call of a function that the group makes once for each of its runs."""
    for node in walk_until(ast.parse(group.code).body, lambda each: isinstance(each, _LOOPS)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _given(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr] | None:
    """What the call gives for each parameter; None where that is not all by position."""
    arguments = function.args
    others = (arguments.posonlyargs, arguments.kwonlyargs, arguments.defaults, call.keywords)
    if any(others) or arguments.vararg or arguments.kwarg:
        return None
    if not call.args or len(call.args) != len(arguments.args):
        return None
    return {each.arg: given for each, given in zip(arguments.args, call.args, strict=True)}


def _drawn(
    statement: ast.stmt, given: Mapping[str, ast.expr], group: Group, taken: set[str]
) -> str | None:
    """What a statement draws, as the step's caller writes it; None for any other statement."""
    if not isinstance(statement, ast.Assign) or not draws_tensor(statement.value):
        return None
    variable = ast.unparse(statement.targets[0])
    if len(statement.targets) > 1 or not variable.isidentifier() or variable in {*taken, *given}:
        return None
    value = ast.parse(ast.unparse(statement.value), mode="eval").body
    parents = {c: n for n in ast.walk(value) for c in ast.iter_child_nodes(n)}
    for name in [n for n in ast.walk(value) if isinstance(n, ast.Name)]:
        if name.id in given and last_name(parents[name]) not in ("size", "shape"):
            return None
    expression = ast.unparse(_Given(given).visit(value))
    read = Names([ast.Expr(ast.parse(expression, mode="eval").body)]).loaded
    return expression if not read & group.names.stored else None


class _Given(ast.NodeTransformer):
    """What a call gives in the place of each parameter."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._given.get(node.id, node)


def _with_parameter(
    function: ast.FunctionDef, statement: ast.stmt, variable: str, file: str, text: str
) -> Change:
    """The function with one more parameter, and without the statement that drew it and the comment above."""
    code = with_places(text.replace("\r\n", "\n"), [_one_more(function.args.args[-1], variable)])
    lines, drawn = code.split("\n"), lines_with_comment(statement, code)
    start = function.lineno
    while start > 1 and lines[start - 2].strip()[:1] in ("", "#"):
        start -= 1
    kept = (n for n in range(start, (function.end_lineno or 0) + 1) if n not in drawn)
    at = At.start_of(function, file)
    return Instead(at, at, "".join(lines[number - 1] + "\n" for number in kept))


def _one_more(last: ast.arg | ast.expr, name: str) -> Place:
    """Where the one after the last parameter or argument is, with its name."""
    column = last.end_col_offset or 0
    return last.end_lineno or 0, column, column, f", {name}"
