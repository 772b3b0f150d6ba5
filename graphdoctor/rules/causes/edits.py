"""A place of a finding -> the replacement of source text that is its cure; none if the cure is more than that."""

from __future__ import annotations

import ast
import linecache

from graphdoctor.rules.causes.source import statement_at
from graphdoctor.source.trees import holds
from graphdoctor.values.finding import Edit
from graphdoctor.values.locations import Location, is_library

# Functions that check their argument on the CPU, the one that does not, and what to take of its result.
_UNCHECKED = {
    "torch.linalg.inv": ("torch.linalg.inv_ex", ".inverse"),
    "torch.inverse": ("torch.linalg.inv_ex", ".inverse"),
    "torch.linalg.cholesky": ("torch.linalg.cholesky_ex", ".L"),
}


def without_read(place: Location | None) -> tuple[Edit, ...]:
    """`name = x.item()` and `name = float(x)` become `name = x`, for a number that the step computes with."""
    statement = _statement(place)
    if (
        place is None
        or not isinstance(statement, ast.Assign)
        or not isinstance(statement.value, ast.Call)
    ):
        return ()
    call = statement.value
    if isinstance(call.func, ast.Attribute) and call.func.attr == "item" and not call.args:
        return _replaced(place, call, _source(place, call.func.value))
    if isinstance(call.func, ast.Name) and call.func.id == "float" and len(call.args) == 1:
        return _replaced(place, call, _source(place, call.args[0]))
    return ()


def as_slice(place: Location | None) -> tuple[Edit, ...]:
    """`x[:, [-1]]` becomes `x[:, -1:]`, and `[2]` becomes `2:3`."""
    for node in _nodes(place):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            lists = [part for part in parts if isinstance(part, ast.List)]
            number = (
                _integer(lists[0].elts[0]) if len(lists) == 1 and len(lists[0].elts) == 1 else None
            )
            if place is not None and number is not None:
                end = "" if number == -1 else str(number + 1)
                return _replaced(place, lists[0], f"{number}:{end}")
    return ()


def made_on_gpu(place: Location | None) -> tuple[Edit, ...]:
    """`torch.arange(n).to(x.device)` becomes `torch.arange(n, device=x.device)`, as does `.cuda()`."""
    for node in _nodes(place):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or place is None
        ):
            continue
        made = node.func.value
        is_move = (node.func.attr == "to" and len(node.args) == 1) or (
            node.func.attr == "cuda" and not node.args
        )
        if not is_move or node.keywords or not isinstance(made, ast.Call) or not _makes(made):
            continue
        device = _source(place, node.args[0]) if node.args else '"cuda"'
        if "dtype" in device or device.startswith("torch."):
            continue
        return _replaced(place, node, _with_argument(place, made, f"device={device}"))
    return ()


def stacked(place: Location | None) -> tuple[Edit, ...]:
    """`torch.tensor([a, b], device=d)` of GPU tensors becomes `torch.stack([a, b])`."""
    for node in _nodes(place):
        if not isinstance(node, ast.Call) or place is None:
            continue
        is_made = ast.unparse(node.func) in ("torch.tensor", "torch.as_tensor")
        if is_made and all(keyword.arg == "device" for keyword in node.keywords):
            return _replaced(place, node, f"torch.stack({_source(place, node.args[0])})")
    return ()


def filled(place: Location | None) -> tuple[Edit, ...]:
    """`y[0, 0] = 1.0` becomes `y[0, 0].fill_(1.0)`."""
    statement = _statement(place)
    if place is None or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ()
    target, value = statement.targets[0], _source(place, statement.value)
    if not isinstance(target, ast.Subscript):
        return ()
    return _replaced(place, statement, f"{_source(place, target)}.fill_({value})")


def asserted(place: Location | None) -> tuple[Edit, ...]:
    """`assert condition, message` becomes `torch._assert_async(condition)`."""
    statement = _statement(place)
    if place is None or not isinstance(statement, ast.Assert):
        return ()
    return _replaced(place, statement, f"torch._assert_async({_source(place, statement.test)})")


def selected(place: Location | None) -> tuple[Edit, ...]:
    """`a if condition else b`, and an `if` that binds one name, become torch.where."""
    statement = _statement(place)
    if place is None:
        return ()
    if isinstance(statement, ast.If):
        return _selected_statement(place, statement)
    for node in _nodes(place):
        if isinstance(node, ast.IfExp):
            parts = (_source(place, part) for part in (node.test, node.body, node.orelse))
            return _replaced(place, node, f"torch.where({', '.join(parts)})")
    return ()


def _selected_statement(place: Location, statement: ast.If) -> tuple[Edit, ...]:
    (then, *more), otherwise = statement.body, statement.orelse
    bound = _bound_name(then)
    if more or bound is None or len(otherwise) > 1:
        return ()
    other = bound
    if otherwise:
        if _bound_name(otherwise[0]) != bound:
            return ()
        other = _source(place, otherwise[0].value)  # type: ignore[attr-defined]
    value = _source(place, then.value)  # type: ignore[attr-defined]
    test = _source(place, statement.test)
    return _replaced(place, statement, f"{bound} = torch.where({test}, {value}, {other})")


def _bound_name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def without_check(place: Location | None) -> tuple[Edit, ...]:
    """`torch.linalg.inv(x)` becomes `torch.linalg.inv_ex(x).inverse`."""
    for node in _nodes(place):
        if isinstance(node, ast.Call) and place is not None and not node.keywords:
            found = _UNCHECKED.get(ast.unparse(node.func))
            if found is not None and len(node.args) == 1:
                return _replaced(
                    place, node, f"{found[0]}({_source(place, node.args[0])}){found[1]}"
                )
    return ()


def removed(place: Location | None) -> tuple[Edit, ...]:
    """A statement that only calls, such as `torch.cuda.synchronize()`, becomes `pass`."""
    statement = _statement(place)
    if (
        place is None
        or not isinstance(statement, ast.Expr)
        or not isinstance(statement.value, ast.Call)
    ):
        return ()
    return _replaced(place, statement, "pass")


def with_device(place: Location | None, name: str) -> tuple[Edit, ...]:
    """A call `torch.rand(())` gets `device="cuda"`."""
    for node in _nodes(place):
        if (
            isinstance(node, ast.Call)
            and place is not None
            and _makes(node)
            and ast.unparse(node.func) == f"torch.{name}"
        ):
            assert place is not None
            return _replaced(place, node, _with_argument(place, node, 'device="cuda"'))
    return ()


def instead_of_statement(file: str, statement: ast.stmt, code: str) -> tuple[Edit, ...]:
    return _replaced(Location(file, statement.lineno), statement, code)


_MAKERS = frozenset(
    {
        "arange",
        "empty",
        "eye",
        "full",
        "linspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "zeros",
    }
)


def _makes(call: ast.Call) -> bool:
    """Whether it is a call of torch that makes a tensor, on no device that is named."""
    name = ast.unparse(call.func)
    named = any(keyword.arg == "device" for keyword in call.keywords)
    return name.startswith("torch.") and name.removeprefix("torch.") in _MAKERS and not named


def _with_argument(place: Location, call: ast.Call, argument: str) -> str:
    code = _source(place, call)
    has_arguments = bool(call.args or call.keywords)
    return f"{code[:-1].rstrip().rstrip(',')}{', ' if has_arguments else ''}{argument})"


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


def _statement(place: Location | None) -> ast.stmt | None:
    if place is None or is_library(place.file):
        return None
    return statement_at(place.file, place.line)


def _nodes(place: Location | None) -> list[ast.AST]:
    statement = _statement(place)
    if statement is None or place is None:
        return []
    return [node for node in ast.walk(statement) if holds(node, place.line)]


def _source(place: Location, node: ast.AST) -> str:
    """The text of a node, as it is in the file."""
    return ast.get_source_segment("".join(linecache.getlines(place.file)), node) or ast.unparse(
        node
    )


def _replaced(place: Location, node: ast.stmt | ast.expr, text: str) -> tuple[Edit, ...]:
    lines = linecache.getlines(place.file)
    if node.end_lineno is None or node.end_col_offset is None or node.end_lineno > len(lines):
        return ()
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    return (
        Edit(
            file=place.file,
            start_line=node.lineno,
            start_column=len(first[: node.col_offset].decode(errors="replace")) + 1,
            end_line=node.end_lineno,
            end_column=len(last[: node.end_col_offset].decode(errors="replace")) + 1,
            new_text=text,
        ),
    )
