"""A product with a sparse factor that is a host sync -> the same product in operators that a capture accepts."""

from __future__ import annotations

import ast

from graphdoctor.rules.causes.source import statement_at
from graphdoctor.source.trees import last_name, scope_at
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op

_PRODUCTS = frozenset({"mm", "spmm", "matmul"})
_PRODUCT = "compute the product with `index_add`"
_HEADS = {
    "uncoalesced": "{condition}{product}:",
    "by-columns": "Before the step, set `{sparse} = {sparse}.to_sparse_coo()`. {condition}{product}:",
}
_LEFT = (
    "{rows}, {cols} = {sparse}._indices()",
    "terms = {sparse}._values()[:, None] * {dense}.index_select(0, cols)",
    "{result} = {dense}.new_zeros({sparse}.size({first}), {dense}.size(1))",
    "{result} = {result}.index_add(0, rows, terms)",
)
_RIGHT = (
    "{rows}, {cols} = {sparse}._indices()",
    "terms = {dense}.index_select(1, rows) * {sparse}._values()",
    "{result} = {dense}.new_zeros({dense}.size(0), {sparse}.size({second}))",
    "{result} = {result}.index_add(1, cols, terms)",
)
_LIMITS = (
    "`terms` has one row for each nonzero. `_values()` has no gradient: in its place, use the tensor of values that"
    " a learned `{sparse}` is made of."
)


def product_without_kernel(op: Op) -> str:
    """The fix of a product whose sparse factor is not coalesced, or compressed by columns; "" for others."""
    for position, use in enumerate(op.inputs[-2:]):  # what is added comes before
        if use.sparse in _HEADS:
            return _fix(op.location, _HEADS[use.sparse], position)
    return ""


def _fix(place: Location | None, head: str, position: int) -> str:
    """The code in the reader's own names, as far as the factors are variables; `x` and `sparse` are any others."""
    factors, result = _product_at(place)
    lines: tuple[str, ...] = _RIGHT if position else _LEFT
    sparse, dense, is_transposed = "sparse", "x", False
    if factors is not None:
        factor, other = factors[position], factors[1 - position]
        if isinstance(inner := _transposed(factor), ast.expr):
            factor, is_transposed = inner, True
        if _is_variable(factor):
            sparse = ast.unparse(factor)
        if _is_variable(other):
            dense = ast.unparse(other)
        else:
            lines = (f"x = {ast.unparse(other)}", *lines)
    is_derived = _has_own_backward(place)
    product = f"{_PRODUCT[:1].upper()}{_PRODUCT[1:]}" if is_derived else _PRODUCT
    words = {
        "sparse": sparse,
        "dense": dense,
        "result": result,
        "condition": "" if is_derived else f"If `{sparse}` has no learned values, ",
        "product": product,
        "rows": "cols" if is_transposed else "rows",
        "cols": "rows" if is_transposed else "cols",
        "first": int(is_transposed),
        "second": 1 - int(is_transposed),
    }
    code = "\n".join(f"    {line}" for line in lines)
    texts = (head, code) if is_derived else (head, code, _LIMITS)
    return "\n\n".join(texts).format(**words)


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
    return isinstance(scope, ast.FunctionDef) and [each.arg for each in scope.args.args[:1]] == [
        "ctx"
    ]


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
