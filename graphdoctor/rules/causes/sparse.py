"""A product with a sparse factor that is a host sync -> the same product in operators that a capture accepts."""

from __future__ import annotations

import ast

from graphdoctor.rules.causes.source import statement_at
from graphdoctor.source.trees import last_name
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op

_PRODUCTS = frozenset({"mm", "spmm", "matmul"})
_HEADS = {
    "uncoalesced": "If `{sparse}` has no learned values, compute the product with `index_add`:",
    "by-columns": (
        "Before the step, set `{sparse} = {sparse}.to_sparse_coo()`. If `{sparse}` has no learned values, compute"
        " the product with `index_add`:"
    ),
}
_LEFT = (
    "rows, cols = {sparse}._indices()",
    "terms = {sparse}._values()[:, None] * {dense}.index_select(0, cols)",
    "{result} = {dense}.new_zeros({sparse}.size(0), {dense}.size(1))",
    "{result} = {result}.index_add(0, rows, terms)",
)
_RIGHT = (
    "rows, cols = {sparse}._indices()",
    "terms = {dense}.index_select(1, rows) * {sparse}._values()",
    "{result} = {dense}.new_zeros({dense}.size(0), {sparse}.size(1))",
    "{result} = {result}.index_add(1, cols, terms)",
)
_LIMITS = (
    "`terms` has one row for each nonzero. `_values()` has no gradient: in its place, use the tensor of values that"
    " a learned `{sparse}` is made of."
)


def product_without_kernel(op: Op) -> str:
    """The fix of a product whose sparse factor is not coalesced, or compressed by columns; "" for others."""
    for position, use in enumerate(op.inputs[-2:]):  # what is added comes before
        if use.sparse not in _HEADS:
            continue
        factors, result = _product_at(op.location)
        sparse = factors[position] if factors else None
        dense = factors[1 - position] if factors else None
        lines: tuple[str, ...] = _RIGHT if position else _LEFT
        if dense is not None and not _is_variable(dense):
            lines = (f"x = {ast.unparse(dense)}", *lines)
        words = {
            "sparse": ast.unparse(sparse)
            if sparse is not None and _is_variable(sparse)
            else "sparse",
            "dense": ast.unparse(dense) if dense is not None and _is_variable(dense) else "x",
            "result": result,
        }
        code = "\n".join(f"    {line}" for line in lines)
        return "\n\n".join((_HEADS[use.sparse], code, _LIMITS)).format(**words)
    return ""


def _product_at(place: Location | None) -> tuple[tuple[ast.expr, ast.expr] | None, str]:
    """The factors of the only product on a line, and the variable that it is assigned to."""
    statement = statement_at(place.file, place.line) if place is not None else None
    nodes = ast.walk(statement) if statement is not None else ()
    found = [pair for node in nodes if (pair := _factors(node)) is not None]
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            result = name
        case _:
            result = "product"
    return found[0] if len(found) == 1 else None, result


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
