"""Where a step copies its batch to the GPU: a captured step is given the tensors of the CPU, and copies them itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.target.program.names import Names
from graphdoctor.values.finding import Finding

_COPIES = frozenset({"to", "cuda"})
_COPY = "aten._to_copy.default"


def only_copies(statement: ast.stmt, batch: AbstractSet[str]) -> bool:
    """Whether a statement only binds copies of these variables, or of their items."""
    calls = [*calls_in(statement)]
    return isinstance(statement, ast.Assign) and bool(calls) and _are_of(batch, calls)


def is_copy(
    finding: Finding, file: str, statements: Sequence[ast.stmt], batch: AbstractSet[str]
) -> bool:
    """Whether a finding is about a copy of these variables, or of their items, in the statements of a file."""
    place = finding.location
    if place is None or place.file != file or finding.operator != _COPY:
        return False
    on_line = (c for c in calls_in(*statements) if c.lineno <= place.line <= (c.end_lineno or 0))
    copies = [call for call in on_line if last_name(call.func) in _COPIES]
    return bool(copies) and _are_of(batch | _items(statements, batch), copies)


def _are_of(batch: AbstractSet[str], calls: Iterable[ast.Call]) -> bool:
    return all(_copied(call) in batch for call in calls)


def _copied(call: ast.Call) -> str:
    """The variable that a call copies, or an item of it; "" for another call."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _COPIES:
        return ""
    holder = call.func.value
    while isinstance(holder, ast.Subscript):
        holder = holder.value
    return holder.id if isinstance(holder, ast.Name) else ""


def _items(statements: Iterable[ast.stmt], batch: AbstractSet[str]) -> set[str]:
    """What loops bind to the items of the batch, as `{k: v.to(device) for k, v in batch.items()}` does."""
    nodes = (n for each in statements for n in ast.walk(each))
    loops = (n for n in nodes if isinstance(n, (ast.For, ast.comprehension)))
    over = (n for n in loops if Names([ast.Expr(n.iter)]).loaded <= batch)
    return {n.id for loop in over for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
