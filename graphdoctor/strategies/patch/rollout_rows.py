"""The statements that write a row of each storage of a rollout, next to those that compute the action.

`values[step] = value` launches a small kernel for each storage. A number that a loop counts is frozen at capture. With
a tensor of one element in its place, the same statement writes the row that the tensor names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphdoctor.source.trees import calls_in
from graphdoctor.strategies.patch.edits.edit import NoProposal
from graphdoctor.strategies.patch.read_values import is_of_tensors
from graphdoctor.strategies.patch.source import Place
from graphdoctor.strategies.patch.step_parts import MODES, Group, called, replaced
from graphdoctor.target.program.names import Names, names_outside
from graphdoctor.target.program.statements import Span

_FROM_HOST = frozenset({"to", "cuda", "tensor", "as_tensor", "from_numpy"})


@dataclass(frozen=True, slots=True)
class Rollout:
    """Statements that act and write rows, and the counter that names the row."""

    span: Span
    counter: str

    def by_index(self, group: Group) -> Group:
        """The group with values of the storage's type: a write by an index converts nothing."""
        places: list[Place] = []
        for row in (n for s in ast.parse(group.code).body for n in ast.walk(s)):
            storage = _storage(row, self.counter)
            if storage and isinstance(row, ast.Assign):
                value, end = row.value, row.value.end_col_offset or 0
                is_whole = isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
                if not is_whole:
                    places.append((value.lineno, value.col_offset, value.col_offset, "("))
                typed = f"{'' if is_whole else ')'}.type_as({storage})"
                places.append((value.lineno, end, end, typed))
        return replaced(group, places)


def rollout_of(span: Span, counters: Iterable[str]) -> Rollout:
    """With the statements around those that act. Raises NoProposal."""
    for counter in counters:
        wider = _with_rows(span, counter)
        if wider is not span:
            return Rollout(wider, counter)
    raise NoProposal("no statement next to it writes a row of a rollout")


def _with_rows(span: Span, counter: str) -> Span:
    """With the rows just above and below, also those around its block without gradients; the same span without rows."""
    bound = names_outside(span.loop or span.owner, (), ast.Store)

    def is_row(statement: ast.stmt) -> bool:
        storage = _storage(statement, counter)
        return bool(storage) and storage not in bound and span.is_whole_file

    first, last = span.first, span.last
    while first and is_row(span.block[first - 1]):
        first -= 1
    while last + 1 < len(span.block) and is_row(span.block[last + 1]):
        last += 1
    found = span if (first, last) == (span.first, span.last) else span.of(first, last)
    holder = span.around[-1]
    is_whole = first == 0 and last == len(span.block) - 1
    if not is_whole or not isinstance(holder, ast.With) or not called(holder.items[0]) & MODES:
        return found
    block = tuple(span.block_with(holder))
    index, last_line = block.index(holder), holder.end_lineno or 0
    around = replace(
        span, block=block, first=index, last=index, around=span.around[:-1], last_line=last_line
    )
    wider = _with_rows(around, counter)
    return found if wider is around else wider


def _storage(statement: ast.AST, counter: str) -> str:
    """The variable of which a statement writes the row that a counter names, with a tensor of the GPU."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return ""
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return ""
    is_row = isinstance(target.slice, ast.Name) and target.slice.id == counter
    reads = Names([ast.Expr(value)]).loaded
    is_computed = all(map(is_of_tensors, calls_in(value))) and not called(value) & _FROM_HOST
    is_on_gpu = bool(reads) and is_computed
    is_plain = counter not in reads and value.lineno == value.end_lineno
    return target.value.id if is_row and is_on_gpu and is_plain else ""
