"""Collects values of a loop as tensors, which the host reads once after the loop.

`losses.append(loss.item())` makes the host wait for the GPU in each step, so no replay runs while the next batch is
loaded. So does `total += loss.item()`. The same numbers can be read from all tensors after the loop, if nothing reads
the list or the sum before.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from graphdoctor.source.trees import always_run, is_scope, last_name
from graphdoctor.strategies.patch.read_values import READS, is_of_tensors
from graphdoctor.strategies.patch.source import (
    Above,
    At,
    Below,
    Change,
    Instead,
    Place,
    with_places,
)
from graphdoctor.strategies.patch.step_parts import Group
from graphdoctor.target.program.names import Names, names_in_file
from graphdoctor.target.program.statements import LOOPS, Span

_SHOWS = frozenset({"print", "float", "int", "bool", "str"})  # the host reads their arguments
_SHARE_MEMORY = frozenset(
    {"detach", "view", "reshape", "flatten", "squeeze", "unsqueeze", "expand"}
)


@dataclass(frozen=True, slots=True)
class _Read:
    """A statement on one line that adds `tensor.item()` to a list, or to a number if `is_sum`.

    `start` and `end` are the columns of `.item()`.
    """

    statement: ast.stmt
    into: str
    tensor: str
    start: int
    end: int
    is_sum: bool

    def without(self, collected: str) -> Place:
        """The change of its line that lets it add the tensor to the list `collected`."""
        line, column = self.statement.lineno, self.statement.col_offset
        if self.is_sum:
            return line, column, self.end, f"{collected}.append({self.tensor})"
        return line, self.start, self.end, ""


def read_after_loops(
    codes: Sequence[str], span: Span, groups: Sequence[Group], file: str, text: str, indent: str
) -> tuple[list[str], list[Change]]:
    """Let loops around captured functions collect tensors in place of values, and read the values after the loop.

    `codes` are what comes below the calls: they are returned changed, with the changes of the program's other lines.
    All that such a loop does with its list or its number is to add results of the functions to it. Nothing changes if
    the host waits for the GPU in each step anyway.
    """
    step = span.block[span.first : span.last + 1]
    in_step = {id(n) for s in step for n in ast.walk(s)}
    trees = [ast.parse(code) for code in codes]
    below = [[*_reads(tree)] for tree in trees]
    elsewhere = [each for each in _reads(span.owner) if id(each.statement) not in in_step]
    taken = names_in_file(text)
    places: list[list[Place]] = [[] for _ in codes]
    changes: list[Change] = []
    chosen: set[ast.stmt] = set()
    every = [*(read for several in below for read in several), *elsewhere]
    for name in dict.fromkeys(read.into for read in every):
        own = [read for read in every if read.into == name]
        loop = _loop_that_collects(name, own, span, groups)
        if loop is None:
            continue
        is_sum = own[0].is_sum
        collected = _free_name(own[0].tensor, taken) if is_sum else name
        taken.add(collected)
        chosen |= {read.statement for read in own}
        for number, several in enumerate(below):
            places[number] += (read.without(collected) for read in several if read.into == name)
        for read in (read for read in elsewhere if read.into == name):
            here = At.start_of(read.statement, file)
            changes.append(Instead(here, here, _line_without(read, collected, text)))
        at = At.start_of(loop, file)
        if is_sum:
            changes.append(Above(at, f"{collected} = []\n"))
            each = next(n for n in ("each", "value", f"each_{name}") if n not in taken)
            code = f"for {each} in {collected}:\n{indent}{name} += {each}.item()\n"
        else:
            code = f"{name} = torch.hstack({name}).tolist() if {name} else []\n"
        changes.append(Below(at, code))
    others = [*(s for tree in trees for s in tree.body), *(s for s in span.block if s not in step)]
    results = {name for group in groups for name in group.names.stored}
    if any(_always_waits(each, results) for each in others if each not in chosen):
        return [*codes], []
    changed = [with_places(code, own) for code, own in zip(codes, places, strict=True)]
    return changed, changes


def _always_waits(statement: ast.stmt, results: Container[str]) -> bool:
    """Whether the host reads a tensor each time that the statement runs: any by `READS`, results by `_SHOWS`."""
    for node in always_run([statement]):
        if isinstance(node, ast.Call):
            arguments = (each.id for each in node.args if isinstance(each, ast.Name))
            is_shown = last_name(node.func) in _SHOWS and any(n in results for n in arguments)
            if is_shown or last_name(node.func) in READS:
                return True
    return False


def _line_without(read: _Read, collected: str, text: str) -> str:
    """The statement, changed, with the comments above it."""
    number, start, end, code = read.without(collected)
    *above, own = text.split("\n")[:number]
    comments = takewhile(lambda line: line.lstrip().startswith("#"), reversed(above))
    first, last = read.statement.col_offset, read.statement.end_col_offset
    whole = own.encode()
    code = f"{whole[first:start].decode()}{code}{whole[end:last].decode()}\n"
    return "".join(f"{line.lstrip()}\n" for line in reversed([*comments])) + code


def _free_name(tensor: str, taken: Container[str]) -> str:
    tensor = tensor.removeprefix("step_")
    plural = f"{tensor}es" if tensor.endswith("s") else f"{tensor}s"
    names = [plural, f"{tensor}_values", f"{tensor}_of_steps"]
    return next((each for each in names if each not in taken), f"all_{plural}")


def _reads(tree: ast.AST) -> Iterator[_Read]:
    """`x += [y.item()]`, `x.append(y.item())` and `x += y.item()`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            is_list = isinstance(node.value, ast.List)
            into: ast.expr = node.target
            values = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function, is_list = node.value.func, True
            if not isinstance(function, ast.Attribute) or function.attr != "append":
                continue
            into, values = function.value, node.value.args
        else:
            continue
        read = values[0] if len(values) == 1 else None
        if not isinstance(read, ast.Call) or not isinstance(read.func, ast.Attribute):
            continue
        tensor, is_item = read.func.value, read.func.attr == "item" and not read.args
        is_named = isinstance(into, ast.Name) and isinstance(tensor, ast.Name)
        if is_item and is_named and node.lineno == node.end_lineno:
            start, end = tensor.end_col_offset or 0, read.end_col_offset or 0
            names = ast.unparse(into), ast.unparse(tensor)
            yield _Read(node, *names, start, end, is_sum=not is_list)


def _loop_that_collects(
    name: str, reads: Sequence[_Read], span: Span, groups: Sequence[Group]
) -> ast.stmt | None:
    """The outermost loop around the step that only adds to a variable, by these statements.

    A list is created above the loop, in the same block. No function and no handler of an exception names the variable.
    """
    nodes = [*ast.walk(span.owner)]
    shared = (n for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)))
    scopes = (n for n in nodes if is_scope(n) and n is not span.owner)
    is_shared = any(name in each.names for each in shared) or _is_named(name, scopes)
    if is_shared or len({read.is_sum for read in reads}) > 1:
        return None
    for number, holder in enumerate(span.around):
        handled = (
            s
            for h in span.around[:number]
            for s in (*getattr(h, "handlers", ()), *getattr(h, "finalbody", ()))
        )
        if _is_named(name, handled):
            return None
        inside = [*ast.walk(holder)]
        uses = sum(isinstance(n, ast.Name) and n.id == name for n in inside)
        if (
            isinstance(holder, LOOPS)
            and uses == len(reads)
            and (reads[0].is_sum or _is_created(name, holder, span))
            and all(_is_result(read.tensor, inside, groups) for read in reads)
        ):
            return holder
    return None


def _is_created(name: str, loop: ast.stmt, span: Span) -> bool:
    """Whether the block creates an empty list above the loop, and reads nothing of it in between."""
    block = span.block_with(loop)
    above = block[: block.index(loop)]
    created = [number for number, each in enumerate(above) if _creates(each, name)]
    return bool(created) and not _is_named(name, above[created[-1] + 1 :])


def _creates(statement: ast.stmt, name: str) -> bool:
    """Whether it binds the variable alone to an empty list: `x = []` and `x, y = [], 0`."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return False
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(target.elts, value.elts, strict=False)]
    return any(ast.unparse(t) == name and ast.unparse(v) in ("[]", "list()") for t, v in pairs)


def _is_named(name: str, nodes: Iterable[ast.AST]) -> bool:
    inside = (n for node in nodes for n in ast.walk(node))
    return any(isinstance(n, ast.Name) and n.id == name for n in inside)


def _is_result(name: str, loop: Iterable[ast.AST], groups: Iterable[Group]) -> bool:
    """Whether only a captured function binds a variable in the loop, and to a tensor that no later step changes."""
    stores = (n for n in loop if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    bound = {id(each) for each in stores if each.id == name}
    return any(
        bound <= {id(n) for statement in group.origin for n in ast.walk(statement)}
        and _is_new(name, group.statements)
        for group in groups
    )


def _is_new(name: str, statements: Iterable[ast.stmt]) -> bool:
    """Whether statements bind a variable to a tensor with its own memory."""
    nodes = [n for statement in statements for n in ast.walk(statement)]
    bound = (n for n in nodes if isinstance(n, ast.Assign) and name in Names([n]).stored)
    values = [each.value for each in bound]
    backward = (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "backward")
    return bool(values) and (_is_named(name, backward) or all(map(_computes, values)))


def _computes(value: ast.expr) -> bool:
    """Whether the value is computed, and no view of a tensor that was there before."""
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _SHARE_MEMORY:
            return _computes(value.func.value)
        return is_of_tensors(value)
    return isinstance(value, (ast.BinOp, ast.Compare))
