"""Replace a product with a sparse factor that is a host sync by operators that a capture accepts."""

from __future__ import annotations

import ast
from typing import NamedTuple

from graphdoctor.rules.causes.source import statement_at, with_expressions
from graphdoctor.source.trees import first_parameter, last_name, scope_at
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Op, TensorUse

_PRODUCTS = frozenset({"mm", "spmm", "matmul"})
_HEADS = {
    "uncoalesced": "Compute the product with `index_add`:",
    "by-columns": (
        "Before the step, set `{sparse} = {sparse}.to_sparse_coo()`. Compute the product with `index_add`:"
    ),
}
_MAY_LEARN = (
    "`_values()` has no gradient: if `{sparse}` is made of learned values, use the tensor of these"
    " values instead. "
)
_LEFT = (
    "{rows}, {cols} = {sparse}._indices()",
    "terms = {sparse}._values()[:, None] * {dense}.index_select(0, cols)",
    "{result} = {dense}.new_zeros({sparse}.size({first}), {dense}.size(1))",
)
_RIGHT = (
    "{rows}, {cols} = {sparse}._indices()",
    "terms = {dense}.index_select(1, rows) * {sparse}._values()",
    "{result} = {dense}.new_zeros({dense}.size(0), {sparse}.size({second}))",
)


class _Product(NamedTuple):
    """A product in a statement of the user's, and its factors."""

    statement: ast.stmt
    node: ast.AST
    factors: tuple[ast.expr, ast.expr]


def product_without_kernel(op: Op, iteration: Iteration) -> Cure | None:
    """The cure of a product whose sparse factor is not coalesced, or compressed by columns; None for others."""
    for position, use in enumerate(op.inputs[-2:]):  # what is added comes before
        if use.sparse in _HEADS:
            head = _HEADS[use.sparse]
            if _may_learn(use, iteration) and not _has_own_backward(op.location):
                head = f"{_MAY_LEARN}{head}"
            return _cure(op.location, head, position)
    return None


def _cure(place: Location | None, head: str, position: int) -> Cure:
    """The code in the reader's own names, as far as the factors are variables; `dense` and `sparse` are any others."""
    product = _product_at(place)
    before: list[str] = []
    sparse, dense, result, is_transposed = "sparse", "dense", "product", False
    if product is not None:
        factor, other = product.factors[position], product.factors[1 - position]
        if isinstance(inner := _transposed(factor), ast.expr):
            factor, is_transposed = inner, True
        if _is_variable(factor):
            sparse = ast.unparse(factor)
        else:
            before.append(f"sparse = {ast.unparse(factor)}")
        if _is_variable(other):
            dense = ast.unparse(other)
        else:
            before.append(f"dense = {ast.unparse(other)}")
    indices = "cols" if position else "rows"
    last = f"product = product.index_add({position}, {indices}, terms)"
    match product:
        case _Product(ast.Assign(targets=[ast.Name(id=name)], value=value), node) if value is node:
            result = name
            last = last.replace("product", name)
        case _Product(ast.Return() | ast.Assign() | ast.AugAssign() as statement, node):
            new = last.partition(" = ")[2]
            last = with_expressions(statement, {node: new})
    words = {
        "sparse": sparse,
        "dense": dense,
        "result": result,
        "rows": "cols" if is_transposed else "rows",
        "cols": "rows" if is_transposed else "cols",
        "first": int(is_transposed),
        "second": 1 - int(is_transposed),
    }
    lines = (each.format(**words) for each in (_RIGHT if position else _LEFT))
    return Cure(head.format(**words), (*before, *lines, last))


def _may_learn(use: TensorUse, iteration: Iteration) -> bool:
    """Whether the step makes the sparse tensor of a dense one: a storage is that of the values."""
    is_older = any(one.storage == use.storage for one in iteration.externals)
    uses = (one for op in iteration.ops for one in op.inputs if one.storage == use.storage)
    return not is_older or any(not one.sparse for one in uses)


def _transposed(node: ast.expr) -> ast.expr | None:
    """What `x.t()` transposes."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="t"), args=[]):
            return inner
        case _:
            return None


def _has_own_backward(place: Location | None) -> bool:
    """Whether a line is in the forward or backward of a torch.autograd.Function, which autograd does not look into."""
    scope = scope_at(place.file, place.line) if place is not None else None
    return first_parameter(scope) == "ctx"


def _product_at(place: Location | None) -> _Product | None:
    """The only product on a line."""
    statement = statement_at(place.file, place.line) if place is not None else None
    if statement is None:
        return None
    found = [
        _Product(statement, node, pair)
        for node in ast.walk(statement)
        if (pair := _factors(node)) is not None
    ]
    return found[0] if len(found) == 1 else None


def _factors(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or last_name(node.func) not in _PRODUCTS:
        return None
    factors = node.args
    if isinstance(node.func, ast.Attribute) and not ast.unparse(node.func).startswith("torch."):
        factors = [node.func.value, *factors]
    return (factors[0], factors[1]) if len(factors) == 2 else None


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)
