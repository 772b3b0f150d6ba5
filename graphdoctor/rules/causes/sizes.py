"""Instead of an operator whose result is as large as values say: code in the program's own names."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from graphdoctor.rules.causes.number_lists import for_repetition, own_statement
from graphdoctor.rules.causes.source import names_in, targets_of, with_expressions
from graphdoctor.source.trees import (
    calls_in,
    first_parameter,
    holds,
    last_name,
    scope_at,
    statements_of,
)
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Op, TensorUse

_SEARCHES = frozenset({"nonzero", "argwhere", "where"})
_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_REDUCTIONS = frozenset({"sum", "mean"})
_OTHERS: Mapping[str, str] = {
    "bincount": "Count into a tensor of fixed size: x.new_zeros(n).scatter_add_(0, x, torch.ones_like(x)).",
    **dict.fromkeys(
        ("_unique", "_unique2", "unique_dim", "unique_consecutive"),
        "Keep the full shape: sort, and mark where a value differs from the one before it.",
    ),
}


def for_size(op: Op, iteration: Iteration, *, is_fixed: bool = False) -> Cure:
    """What to write instead of an operator whose result is as large as values say.

    `is_fixed`: all recorded steps have a result of the same size.
    """
    statement = own_statement(op.location)
    if op.base_name == "nonzero":
        return _for_search(op, iteration, statement)
    if op.base_name in ("index", "masked_select"):
        return _for_mask(op, iteration, statement, is_fixed=is_fixed)
    if op.base_name == "repeat_interleave":
        return for_repetition(op.location, op.inputs[0].numel)
    return Cure(_OTHERS.get(op.base_name, ""))


def _for_search(op: Op, iteration: Iteration, statement: ast.stmt | None) -> Cure:
    """What to write instead of `x.nonzero()`, `torch.argwhere(x)` and `torch.where(x)`."""
    calls = [each for each in calls_in(statement or ast.Pass()) if _searches(each)]
    call = calls[0] if len(calls) == 1 else None
    if constant_state(op.inputs[0], iteration):
        if call is None or op.location is None or statement is None:
            return Cure(
                "The tensor is the same in each step: compute `nonzero()` once, before the step, and pass the result"
                " to the step."
            )
        return _once(op.location, statement, call)
    fixed = "Use torch.nonzero_static(x, size=n), or keep the full shape and mask the values: torch.where(mask, x, 0)."
    if call is None or statement is None or not _is_plain_nonzero(call):
        return Cure(fixed)
    searched = ast.unparse(call.args[0] if call.args else call.func.value)  # type: ignore[attr-defined]
    count = op.outputs[0].shape[0] if op.outputs and op.outputs[0].shape else 0
    code = with_expressions(statement, {call: f"torch.nonzero_static({searched}, size={count})"})
    return Cure(
        f"Keep the full shape and mask the values: `torch.where(mask, x, 0)`. Or, if `{searched}` has {count:,} nonzero"
        f" elements in each step, replace line {statement.lineno} with:",
        (code,),
    )


def _for_mask(op: Op, iteration: Iteration, statement: ast.stmt | None, *, is_fixed: bool) -> Cure:
    """What to write instead of `x[mask]` and `x.masked_select(mask)`."""
    masks = [use for use in op.inputs if use.dtype == "bool"]
    is_constant = bool(masks) and all(constant_state(use, iteration) for use in masks)
    indexed = [
        node
        for node in ast.walk(statement or ast.Pass())
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple | ast.List)
    ]
    texts = {ast.unparse(node.slice) for node in indexed}
    mask = texts.pop() if len(texts) == 1 else ""
    if is_constant:
        if statement is None or not mask or op.location is None or len(masks[0].shape) != 1:
            return Cure(
                "The mask is the same in each step: compute its indices once, before the step, "
                "`indices = mask.nonzero().squeeze(1)`, and use `x.index_select(0, indices)`, or `x[:, indices]` in "
                "another dimension. Or keep the full shape: `torch.where(mask, x, 0)`."
            )
        name = f"{last_name(indexed[0].slice)}_indices".lstrip("_")
        is_own = mask.startswith("self.")
        name = f"self.{name}" if is_own else name
        made = f"{name} = {mask}.nonzero().squeeze(1)"
        where = _loop_to_leave(op.location, indexed[0].slice)
        before = "in `__init__`" if is_own else "before the first step"
        before = f"before the loop on line {where.lineno}" if where is not None else before
        new = with_expressions(
            statement, {each: f"{ast.unparse(each.value)}[{name}]" for each in indexed}
        )
        return Cure(
            f"The mask is the same in each step: compute its indices once, {before}. Then index with them on"
            f" line {statement.lineno}:",
            (f"{made}  # once, {before}", f"{new}  # line {statement.lineno}"),
        )
    if statement is None or not mask:
        return Cure()
    is_full = bool(masks) and masks[0].shape == op.inputs[0].shape
    for node in ast.walk(statement):
        new = _masked(
            node, indexed, mask, is_full=is_full, dims=len(masks[0].shape) if masks else 0
        )
        if new:
            code = with_expressions(statement, {node: new})
            return Cure(
                f"Keep the full shape and mask the values. Replace line {statement.lineno} with:",
                (code,),
            )
    values = {ast.unparse(each.value) for each in indexed}
    if len(values) != 1 or not masks:
        return Cure()
    value, more = values.pop(), len(op.inputs[0].shape) - len(masks[0].shape)
    chosen = f"({mask})" if " " in mask else mask
    at = f"{chosen}[..., {', '.join(['None'] * more)}]" if more else mask
    full = (
        f"keep all elements and set the others to 0, `torch.where({at}, {value}, 0)`: the result then has the shape of"
        f" `{value}`. Divide a mean by `{chosen}.sum()`."
    )
    count = op.outputs[0].shape[0] if op.outputs and is_fixed else 0
    if len(indexed) != 1 or not count:
        return Cure(f"{full[0].upper()}{full[1:]}")
    places = "squeeze(1)" if len(masks[0].shape) == 1 else "unbind(1)"
    selected = f"{value}[torch.nonzero_static({mask}, size={count}).{places}]"
    return Cure(
        f"If `{mask}` selects another number of elements in some steps, {full} If it selects {count:,} in each step,"
        f" replace line {statement.lineno} with:",
        (with_expressions(statement, {indexed[0]: selected}),),
    )


def _masked(
    node: ast.AST, indexed: list[ast.Subscript], mask: str, *, is_full: bool, dims: int
) -> str:
    """A sum, mean or loss of selected values, computed at the full shape; "" of anything else."""
    if not isinstance(node, ast.Call):
        return ""
    chosen = f"({mask})" if " " in mask else mask
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Subscript() as one, attr=name), args=[], keywords=[]
        ) if one in indexed and name in _REDUCTIONS and is_full:
            total = f"torch.where({mask}, {ast.unparse(one.value)}, 0).sum()"
            return total if name == "sum" else f"{total} / {chosen}.sum()"
        case ast.Call(args=[ast.Subscript() as scores, ast.Subscript() as labels], keywords=[]) if (
            scores in indexed and labels in indexed and last_name(node.func) in _LOSSES and dims
        ):
            # -100 is the index that these losses ignore.
            values, targets = ast.unparse(scores.value), ast.unparse(labels.value)
            flat = ".flatten(0, -2)" if dims > 1 else ""
            flat_labels = ".flatten()" if dims > 1 else ""
            return (
                f"{ast.unparse(node.func)}({values}{flat},"
                f" {targets}.masked_fill(~{chosen}, -100){flat_labels})"
            )
    return ""


def _once(place: Location, statement: ast.stmt, call: ast.Call) -> Cure:
    """A call whose result is the same in each step, moved before the loop, or kept in the module."""
    moved: ast.expr = call
    target = ""
    if isinstance(statement, ast.Assign) and _roots(statement.value) <= _roots(call):
        moved, target = statement.value, ast.unparse(statement.targets[0])
    name = "_".join(map(_plain, sorted(targets_of(statement)))) if target else "found"
    text = ast.unparse(moved)
    same = f"`{ast.unparse(call)}` is the same in each step: compute it once."
    loop = _loop_to_leave(place, moved)
    if loop is not None:
        before = f"before the loop on line {loop.lineno}"
        if target:
            return Cure(f"{same} Move line {statement.lineno} {before}:", (ast.unparse(statement),))
        lines = (
            f"{name} = {text}  # {before}",
            f"{with_expressions(statement, {call: name})}  # line {statement.lineno}",
        )
        return Cure(f"{same} Move the call {before}:", lines)
    scope = scope_at(place.file, place.line)
    if first_parameter(scope) != "self":
        function = getattr(scope, "name", "the step")
        return Cure(
            f"{same} Move this line to the caller of `{function}()`, before the step, and pass `{name}` to"
            f" `{function}()`:",
            (f"{name} = {text}",),
        )
    kept = f"self.{name}"
    last = f"{target} = {kept}" if target else with_expressions(statement, {call: kept})
    roots = ", ".join(sorted(f"`{each}`" for each in _roots(call) - {"self", "torch"}))
    reset = f" After {roots} changes, call `del {kept}`." if roots else ""
    return Cure(
        f"{same}{reset} Replace line {statement.lineno} with:",
        (f'if not hasattr(self, "{name}"):', f"    {kept} = {text}", last),
    )


def _loop_to_leave(place: Location, node: ast.expr) -> ast.stmt | None:
    """The outermost loop around a line, in its function, that binds nothing of what an expression reads."""
    scope, roots = scope_at(place.file, place.line), _roots(node)
    for loop in statements_of(scope) if scope is not None else ():
        if not isinstance(loop, ast.For | ast.While) or not holds(loop, place.line):
            continue
        inside = [loop, *statements_of(loop)]
        if not roots & {name.partition(".")[0] for each in inside for name in targets_of(each)}:
            return loop
    return None


def _roots(node: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name in names_in(node)}


def _plain(name: str) -> str:
    return name.rpartition(".")[2]


def _searches(call: ast.Call) -> bool:
    name = last_name(call.func)
    return name in _SEARCHES and (name != "where" or len(call.args) == 1)


def _is_plain_nonzero(call: ast.Call) -> bool:
    """Whether the result is one tensor with a row for each element, as that of torch.nonzero_static is."""
    is_torch = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "torch"
    return (
        not call.keywords
        and isinstance(call.func, ast.Attribute)
        and len(call.args) == int(is_torch)
        and call.func.attr in ("nonzero", "argwhere")
    )


def constant_state(use: TensorUse, iteration: Iteration) -> tuple[str, ...]:
    """The state that a tensor follows from, if the step never writes it; () if it follows from anything else."""
    written = {storage for op in iteration.ops for storage in op.writes}
    state = {
        one.storage: one.name
        for one in iteration.externals
        if one.origin == "state" and one.storage not in written
    }
    makers: dict[int, list[Op]] = {}
    for op in iteration.ops:
        for out in op.outputs:
            makers.setdefault(out.storage, []).append(op)
    names: list[str] = []
    seen, todo = {use.storage}, [use.storage]
    while todo:
        storage = todo.pop()
        if storage in state:
            names.append(state[storage])
            continue
        sources = {each.storage for op in makers.get(storage, ()) for each in op.inputs} - {storage}
        if not sources:
            return ()
        todo += sources - seen
        seen |= sources
    return tuple(names)
