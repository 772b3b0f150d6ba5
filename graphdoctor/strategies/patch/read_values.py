"""Split a statement that computes figures only to show them: the GPU's part, and a statement that reads its values.

`accuracies.append((out.argmax(1) == y).float().mean().item())` launches operators after each step. Within the step,
its graph computes them and returns one number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import torch

from graphdoctor.operators import load_table
from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.strategies.patch.source import Place, with_places
from graphdoctor.target.program.names import Names

READS = frozenset({"cpu", "numpy", "item", "tolist"})  # the host reads a tensor
_NUMBERS = frozenset({"float", "int", "bool"})
_SAME = frozenset({"detach", "cpu", "data"})  # launch nothing that a graph could spare
# What is not computed in each run of the statement, or not once.
_ELSEWHERE = (ast.JoinedStr, ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)
_COMPUTES = (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp, ast.Subscript)
_FIXED = (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub, ast.expr_context)  # an index
_PARTS = (
    *(*_COMPUTES, *_FIXED, ast.Name, ast.Attribute, ast.keyword),
    *(ast.operator, ast.cmpop, ast.unaryop),
)


def with_values_apart(
    code: str, known: AbstractSet[str], made: AbstractSet[str], taken: AbstractSet[str]
) -> tuple[str, str]:
    """Assignments of what the code's only statement computes of tensors that were `made`, and the code with the names.

    "" and the code as it is if there is nothing to compute. `known` are names that the assignments may read, and
    `taken` are those of the file.
    """
    (statement,) = ast.parse(code).body
    own = Names([statement]).stored
    computed: dict[str, str] = {}
    places: list[Place] = []
    if isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
        for value in _read(statement):
            is_known = Names([ast.Expr(value)]).loaded <= known
            if not is_known or not Names([ast.Expr(value)]).loaded & made or not _launches(value):
                continue
            for name in _names(statement, value, made):
                is_own = isinstance(statement, ast.Assign) and name in own - known
                if name in computed or (name in taken and not is_own):
                    continue
                computed[name] = ast.get_source_segment(code, value) or ""
                places.append((value.lineno, value.col_offset, value.end_col_offset or 0, name))
                break
    assigned = "".join(f"{name} = {expression}\n" for name, expression in computed.items())
    return assigned, with_places(code, places)


def computes_figures(statement: ast.stmt, known: AbstractSet[str], made: AbstractSet[str]) -> bool:
    """Whether it only binds variables to what the GPU can compute of tensors that were `made`."""
    if not isinstance(statement, ast.Assign) or not _launches(statement.value):
        return False
    loaded = Names([ast.Expr(statement.value)]).loaded
    targets = [n for target in statement.targets for n in ast.walk(target)]
    is_bound = all(isinstance(n, (ast.Name, ast.Tuple, ast.expr_context)) for n in targets)
    return is_bound and loaded <= known and bool(loaded & made)


def always_waits(call: ast.Call) -> bool:
    """Whether an operator of this name makes the host wait, whatever its arguments are."""
    name = last_name(call.func)
    for fact in load_table().hazards.get(name, ()):
        kinds = fact.operator.partition(f"aten.{name}.")[2].split("_")
        given = zip(kinds, call.args, strict=False)
        is_of_numbers = any(k == "Tensor" and isinstance(a, ast.Constant) for k, a in given)
        if fact.when == "always" and not is_of_numbers:
            return True
    return False


def _read(statement: ast.stmt) -> Iterator[ast.expr]:
    """What the host reads each time that the statement runs, each on one line."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, _ELSEWHERE):
            continue
        value: ast.expr | None = None
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in READS:
                value = node.func.value
            elif isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and node.args:
                value = node.args[0]
        inner = value is None or any(last_name(each.func) in READS for each in calls_in(value))
        if inner:
            waiting += ast.iter_child_nodes(node)
        elif value is not None and value.lineno == value.end_lineno:
            yield value


def _launches(value: ast.expr) -> bool:
    """Whether it only computes with tensors, and not what a graph cannot."""
    while last_name(value.func if isinstance(value, ast.Call) else value) in _SAME:
        inner = value.func if isinstance(value, ast.Call) else value
        if not isinstance(inner, ast.Attribute):
            return False
        value = inner.value
    nodes = [*ast.walk(value)]
    indices = [each.slice for each in nodes if isinstance(each, ast.Subscript)]
    return (
        isinstance(value, _COMPUTES)
        and all(isinstance(n, _FIXED) for index in indices for n in ast.walk(index))
        and all(isinstance(each, _PARTS) for each in nodes)
        and all(is_of_tensors(each) and not always_waits(each) for each in calls_in(value))
    )


def is_of_tensors(call: ast.Call) -> bool:
    """Whether it is a method of tensors that changes nothing in place, or a function of torch."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr.endswith("_"):
        return False
    return ast.unparse(call.func).startswith("torch.") or hasattr(torch.Tensor, call.func.attr)


def _names(statement: ast.stmt, value: ast.expr, made: AbstractSet[str]) -> Iterator[str]:
    """What the value may be called, the best name first."""
    target = _collected_in(statement)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        yield statement.targets[0].id
    if target.endswith("ies"):
        yield f"{target[:-3]}y"
    if target.endswith("sses"):
        yield target[:-2]
    if len(target) > 3 and target.endswith("s") and not target.endswith("ss"):
        yield target[:-1]
    if target:
        yield f"step_{target}"
    read = (n for n in ast.walk(value) if isinstance(n, ast.Name) and n.id in made)
    first = min(read, key=lambda n: n.col_offset).id
    if isinstance(value, ast.Call):
        yield f"{first}_{last_name(value.func)}"
    yield f"{first}_value"


def _collected_in(statement: ast.stmt) -> str:
    """The variable to which a statement adds or appends."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    target: ast.expr | None = statement.target if isinstance(statement, ast.AugAssign) else None
    if isinstance(call, ast.Call) and last_name(call.func) == "append":
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
    return target.id if isinstance(target, ast.Name) else ""
