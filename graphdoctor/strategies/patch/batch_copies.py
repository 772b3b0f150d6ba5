"""Where a step copies its batch to the GPU: a captured step is given the tensors of the CPU, and copies them itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.target.program.names import Names
from graphdoctor.values.finding import Finding

_COPIES = frozenset({"to", "cuda", "type"})
_COPY = "aten._to_copy.default"
# What may be called with them, as the same values come of it on both devices: other dtypes and other shapes.
_CASTS = frozenset({"float", "double", "half", "bfloat16", "long", "int", "bool"})
_SHAPES = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose"})
_MAKES = (ast.ListComp, ast.DictComp, ast.GeneratorExp)


def only_copies(statement: ast.stmt, batch: AbstractSet[str]) -> bool:
    """Whether a statement only binds copies of these variables, or of their items."""
    return bool(copies_in(statement, batch))


def only_unpacks(statement: ast.stmt) -> bool:
    """Whether a statement only gives names to variables or their items, as `x, y = batch` does."""
    if not isinstance(statement, ast.Assign):
        return False
    parts = (ast.Name, ast.Tuple, ast.Subscript, ast.Constant, ast.expr_context)
    is_plain = all(isinstance(n, parts) for n in ast.walk(statement) if n is not statement)
    stored = (n for target in statement.targets for n in ast.walk(target))
    return is_plain and not any(isinstance(n, ast.Subscript) for n in stored)


def copies_in(statement: ast.stmt, batch: AbstractSet[str]) -> list[tuple[str, ast.expr]]:
    """The variables that a statement binds to copies of these variables or of their items, each with what is copied.

    Nothing for a statement that does anything else.
    """
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return []
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        targets, values = target.elts, value.elts
    else:
        targets, values = [target], [value]
    found: list[tuple[str, ast.expr]] = []
    for one, each in zip(targets, values, strict=False):
        copied = _copied_by(each, batch)
        if not isinstance(one, ast.Name) or copied is None:
            return []
        found.append((one.id, copied))
    return found if len(targets) == len(values) else []


def of_one_size(statement: ast.stmt, batch: AbstractSet[str]) -> set[str]:
    """The variables that a statement binds to copies of what they were, of the same shape or length."""
    is_reshaped = any(last_name(call.func) in _SHAPES for call in calls_in(statement))
    copies = [] if is_reshaped else copies_in(statement, batch)
    return {name for name, each in copies if isinstance(each, ast.Name) and each.id == name}


def is_copy(
    finding: Finding, file: str, statements: Sequence[ast.stmt], batch: AbstractSet[str]
) -> bool:
    """Whether a finding is about a copy of these variables, or of their items, in the statements of a file."""
    place = finding.location
    if place is None or place.file != file or finding.operator != _COPY:
        return False
    on_line = (c for c in calls_in(*statements) if c.lineno <= place.line <= (c.end_lineno or 0))
    copies = [call for call in on_line if last_name(call.func) in _COPIES]
    batch = batch | _items(statements, batch)
    return bool(copies) and all(_copied_by(call, batch) is not None for call in copies)


def _copied_by(value: ast.expr, batch: AbstractSet[str]) -> ast.expr | None:
    """What an expression copies; None for an expression that does anything else."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("list", "tuple"):
        value = value.args[0] if len(value.args) == 1 else value
    if isinstance(value, _MAKES):
        return _copied_by_all(value, batch)
    is_copied = False
    while isinstance(value, ast.Call):
        name, arguments = last_name(value.func), [*value.args, *(k.value for k in value.keywords)]
        if name != "Variable" and any(last_name(c.func) != "size" for c in calls_in(*arguments)):
            return None
        if name in _COPIES | _CASTS | _SHAPES and isinstance(value.func, ast.Attribute):
            is_copied = is_copied or name in _COPIES
            value = value.func.value
        elif name == "Variable" and len(value.args) == 1:
            value = value.args[0]
        else:
            return None
    return value if is_copied and _variable(value) in batch else None


def _copied_by_all(
    value: ast.ListComp | ast.DictComp | ast.GeneratorExp, batch: AbstractSet[str]
) -> ast.expr | None:
    """The batch of `{k: v.to(device) for k, v in batch.items()}`."""
    loop, made = value.generators[0], value.value if isinstance(value, ast.DictComp) else value.elt
    over = loop.iter
    if isinstance(over, ast.Call) and last_name(over.func) == "items" and not over.args:
        over = over.func.value if isinstance(over.func, ast.Attribute) else over
    is_plain = len(value.generators) == 1 and not loop.ifs and isinstance(over, ast.Name)
    own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    is_plain = is_plain and not (isinstance(value, ast.DictComp) and [*calls_in(value.key)])
    return over if is_plain and _variable(over) in batch and _copied_by(made, own) else None


def _variable(value: ast.expr) -> str:
    """The variable of which an expression is an item, or which it is; "" for another expression."""
    while isinstance(value, ast.Subscript):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _items(statements: Iterable[ast.stmt], batch: AbstractSet[str]) -> set[str]:
    """What loops bind to the items of the batch, as `{k: v.to(device) for k, v in batch.items()}` does."""
    nodes = (n for each in statements for n in ast.walk(each))
    loops = (n for n in nodes if isinstance(n, (ast.For, ast.comprehension)))
    over = (n for n in loops if Names([ast.Expr(n.iter)]).loaded <= batch)
    return {n.id for loop in over for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
