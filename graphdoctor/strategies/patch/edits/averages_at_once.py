"""Replace a loop that moves parameters towards those of another model by one call for all of them.

`for p, t in zip(net.parameters(), target.parameters()): t.data.copy_(tau * p.data + (1 - tau) * t.data)` launches four
kernels for each parameter. `torch._foreach_lerp_` launches one for many parameters, and rounds otherwise. torch's own
averages, `torch.optim.swa_utils.get_ema_multi_avg_fn`, call it, too.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.strategies.patch.source import At, Change, Instead
from graphdoctor.strategies.patch.step_parts import Group, functions_of
from graphdoctor.target.program.names import Names

_WEIGHT = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)


def with_averages_at_once(group: Group, text: str, varying: AbstractSet[str], width: int) -> Group:
    """The group with one call instead of each such loop that reads none of these varying values of the host."""
    lines = group.code.split("\n")
    for loop in sorted(_loops(ast.parse(group.code), text), key=lambda n: -n.lineno):
        if not Names([loop]).loaded & varying and (call := _call(loop, group.code, width)):
            margin = lines[loop.lineno - 1][: loop.col_offset]
            made = textwrap.indent(call, margin).splitlines()
            lines[loop.lineno - 1 : loop.end_lineno] = made
    return group.with_code("\n".join(lines))


def averages_in_place(
    group: Group, file: str, text: str, varying: AbstractSet[str], width: int
) -> Iterator[Change]:
    """Changes of such loops in the file's own statements of a group."""
    return _changes(group.origin, file, text, varying, width)


def averages_in_functions(
    group: Group, file: str, text: str, varying: AbstractSet[str], width: int
) -> Iterator[Change]:
    """Changes of such loops in the file's functions that a group calls without varying values of the host."""
    calls = [*calls_in(*group.statements)]
    varies = [each for each in calls if Names([ast.Expr(each)]).loaded & varying]
    named = {last_name(each.func) for each in calls} - {last_name(each.func) for each in varies}
    own = [function for name, function in functions_of(text).items() if name in named]
    return _changes(own, file, text, varying=frozenset(), width=width)


def _changes(
    trees: Iterable[ast.AST], file: str, text: str, varying: AbstractSet[str], width: int
) -> Iterator[Change]:
    for loop in (each for tree in trees for each in _loops(tree, text)):
        if not Names([loop]).loaded & varying and (call := _call(loop, text, width)):
            at = At.start_of(loop, file)
            yield Instead(at, at, call)


def _loops(tree: ast.AST, text: str) -> list[ast.For]:
    if not re.search(r"^import torch$", text, re.M):
        return []
    return [n for n in ast.walk(tree) if isinstance(n, ast.For)]


def _call(loop: ast.For, code: str, width: int) -> str:
    """The call that does what a loop does, with the comments in it; "" for any other loop."""
    target, zipped = loop.target, loop.iter
    if not isinstance(target, ast.Tuple) or not isinstance(zipped, ast.Call) or loop.orelse:
        return ""
    models = dict(zip(map(ast.unparse, target.elts), zipped.args, strict=False))
    if ast.unparse(zipped.func) != "zip" or len(models) != 2 or len(zipped.args) != 2:
        return ""
    if any(not _is_of_parameters(each) for each in models.values()):
        return ""
    found = _average(loop.body, {*models})
    if found is None:
        return ""
    moved, towards, weight = found
    read = {n.id for n in ast.walk(weight) if isinstance(n, ast.Name)}
    if {_base(moved), _base(towards)} != {*models} or read & {*models}:
        return ""
    if not all(isinstance(n, _WEIGHT) for n in ast.walk(weight)):
        return ""
    arguments = [
        *(_listed(each, models[_base(each)]) for each in (moved, towards)),
        ast.unparse(weight),
    ]
    call = f"torch._foreach_lerp_({', '.join(arguments)})\n"
    if loop.col_offset + len(call) > width:
        first = code.split("\n")[loop.body[0].lineno - 1]
        indent = first[loop.col_offset : loop.body[0].col_offset]
        inner = "".join(f"{indent}{each},\n" for each in arguments)
        call = f"torch._foreach_lerp_(\n{inner})\n"
    lines = code.split("\n")[loop.lineno : loop.end_lineno]
    comments = (line.strip() for line in lines)
    return "".join(f"{each}\n" for each in comments if each.startswith("#")) + call


def _is_of_parameters(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) == "parameters" and not value.args


def _base(tensor: ast.expr) -> str:
    """`p` of `p`, `p.data` and `p.detach()`."""
    if isinstance(tensor, ast.Call) and last_name(tensor.func) == "detach" and not tensor.args:
        tensor = tensor.func
    if isinstance(tensor, ast.Attribute) and tensor.attr in ("data", "detach"):
        tensor = tensor.value
    return tensor.id if isinstance(tensor, ast.Name) else ""


def _listed(tensor: ast.expr, parameters: ast.expr) -> str:
    if isinstance(tensor, ast.Name):
        return f"list({ast.unparse(parameters)})"
    return f"[{ast.unparse(tensor)} for {_base(tensor)} in {ast.unparse(parameters)}]"


def _average(
    body: list[ast.stmt], variables: AbstractSet[str]
) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """What statements move, towards what, and by which share of the way; None if they do anything else."""
    moved: dict[str, ast.expr] = {}
    calls: list[ast.Call] = []
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        chain: list[ast.Call] = []
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if not value.func.attr.endswith("_"):
                break
            chain.insert(0, value)
            value = value.func.value
        if value is None or not chain:
            return None
        moved[ast.unparse(value)] = value
        calls += chain
    if len(moved) > 1:
        return None
    (target,) = moved.values()
    terms = [_term(each, variables) for each in _summed(target, calls)]
    for (kept, staying), (weight, towards) in (terms, terms[::-1]) if len(terms) == 2 else ():
        if staying is None or towards is None or _base(staying) != _base(target):
            continue
        if _is_rest(kept, weight) or _is_rest(weight, kept):
            return target, towards, weight
    return None


def _summed(target: ast.expr, calls: list[ast.Call]) -> list[ast.expr]:
    """The summands that methods in place write into a tensor; [] for other methods."""
    match [(last_name(call.func), call.args, call.keywords) for call in calls]:
        case [("lerp_", [towards, weight], [])]:
            rest = ast.BinOp(ast.Constant(1), ast.Sub(), weight)
            return [_product(rest, target), _product(weight, towards)]
        case [("copy_", [ast.BinOp(left, ast.Add(), right)], [])]:
            return [left, right]
        case [("mul_", [kept], []), ("add_", [added], [])]:
            return [_product(kept, target), added]
        case [("mul_", [kept], []), ("add_", [added], [ast.keyword("alpha", weight)])]:
            return [_product(kept, target), _product(weight, added)]
    return []


def _product(weight: ast.expr, tensor: ast.expr) -> ast.BinOp:
    return ast.BinOp(weight, ast.Mult(), tensor)


def _term(value: ast.expr, variables: AbstractSet[str]) -> tuple[ast.expr, ast.expr | None]:
    """The weight and the tensor of a product; None for another term."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for weight, tensor in ((value.left, value.right), (value.right, value.left)):
            if _base(tensor) in variables:
                return weight, tensor
    return value, None


def _is_rest(weight: ast.expr, other: ast.expr) -> bool:
    """Whether a weight is written as `1 - other`."""
    if not isinstance(weight, ast.BinOp) or not isinstance(weight.op, ast.Sub):
        return False
    is_from_one = isinstance(weight.left, ast.Constant) and weight.left.value == 1
    return is_from_one and ast.unparse(weight.right) == ast.unparse(other)
