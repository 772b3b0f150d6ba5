"""The replacement of source text that is the cure of a finding; none if the cure is more than that."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec

from graphdoctor.rules.causes.source import reads, statement_at
from graphdoctor.source.trees import holds, last_name, scope_at
from graphdoctor.values.finding import Edit
from graphdoctor.values.locations import Location, is_library

_More = ParamSpec("_More")
_Edits = tuple[Edit, ...]

# Functions that check their argument on the CPU, the one that does not, and what to take of its result.
_UNCHECKED = {
    "torch.linalg.inv": ("torch.linalg.inv_ex", ".inverse"),
    "torch.inverse": ("torch.linalg.inv_ex", ".inverse"),
    "torch.linalg.cholesky": ("torch.linalg.cholesky_ex", ".L"),
}
_MAKERS = frozenset({
    *("arange", "empty", "eye", "full", "linspace", "ones"),
    *("rand", "randint", "randn", "randperm", "zeros"),
})  # fmt: skip
_VIEWS = frozenset({"expand", "repeat", "reshape", "unsqueeze", "view"})
_OF_PYTHON = (ast.In, ast.NotIn, ast.Is, ast.IsNot)


class _Line(NamedTuple):
    """A line of the user's own, and the innermost statement there."""

    file: str
    line: int
    statement: ast.stmt

    @property
    def nodes(self) -> list[ast.AST]:
        return [node for node in ast.walk(self.statement) if holds(node, self.line)]

    def source(self, node: ast.AST) -> str:
        """The text of a node, as it is in the file."""
        return source_of(self.file, node)

    def replaced(self, node: ast.stmt | ast.expr, text: str) -> _Edits:
        return _replaced(self.file, node, text)

    def with_argument(self, call: ast.Call, argument: str) -> str:
        code = self.source(call)
        comma = ", " if call.args or call.keywords else ""
        return f"{code[:-1].rstrip().rstrip(',')}{comma}{argument})"


def source_of(file: str, node: ast.AST) -> str:
    """The text of a node, as it is in the file."""
    text = "".join(linecache.getlines(file))
    return ast.get_source_segment(text, node) or ast.unparse(node)


def _of_users_line(
    edit: Callable[Concatenate[_Line, _More], _Edits],
) -> Callable[Concatenate[Location | None, _More], _Edits]:
    """The edit by a finding's place: nothing without one, in a library, or where no statement is found."""

    @wraps(edit)
    def at(place: Location | None, /, *args: _More.args, **kwargs: _More.kwargs) -> _Edits:
        if place is None or is_library(place.file):
            return ()
        statement = statement_at(place.file, place.line)
        return edit(_Line(place.file, place.line, statement), *args, **kwargs) if statement else ()

    return at


@_of_users_line
def without_read(line: _Line) -> _Edits:
    """`name = x.item()` and `name = float(x)` become `name = x`, for a number that the step computes with."""
    statement = line.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ()
    call = statement.value
    if isinstance(call.func, ast.Attribute) and call.func.attr == "item" and not call.args:
        return line.replaced(call, line.source(call.func.value))
    if isinstance(call.func, ast.Name) and call.func.id == "float" and len(call.args) == 1:
        return line.replaced(call, line.source(call.args[0]))
    return ()


@_of_users_line
def as_slice(line: _Line) -> _Edits:
    """`x[:, [-1]]` becomes `x[:, -1:]`, and `[2]` becomes `2:3`."""
    for node in line.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        lists = [part for part in parts if isinstance(part, ast.List)]
        if len(lists) == 1 and len(lists[0].elts) == 1:
            number = _integer(lists[0].elts[0])
            if number is not None:
                end = "" if number == -1 else str(number + 1)
                return line.replaced(lists[0], f"{number}:{end}")
    return ()


# Another name may be a type's, or a tensor's: `torch.zeros(n).to(x)`.
_NAMES_DEVICE = re.compile(r"dev|gpu|cuda|rank|accel|^\d+$", re.IGNORECASE)


@_of_users_line
def made_on_gpu(line: _Line) -> _Edits:
    """`torch.arange(n).view(-1, 1).to(x.device)` becomes `torch.arange(n, device=x.device).view(-1, 1)`."""
    for node in line.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        moved, move = node.func.value, (node.func.attr, len(node.args))
        if move not in (("to", 1), ("cuda", 0)) or node.keywords:
            continue
        made = _before_views(moved)
        if not isinstance(made, ast.Call) or not _makes(made):
            continue
        device = line.source(node.args[0]) if node.args else '"cuda"'
        views = line.source(moved)[len(line.source(made)) :]
        if "dtype" not in device and _NAMES_DEVICE.search(device):
            return line.replaced(node, line.with_argument(made, f"device={device}") + views)
        has_type = any(keyword.arg in ("dtype", "device") for keyword in made.keywords)
        if not has_type and _is_tensor(line, device):
            like = f"dtype={device}.dtype, device={device}.device"
            return line.replaced(node, line.with_argument(made, like) + views)
    return ()


def _is_tensor(line: _Line, name: str) -> bool:
    """Whether the function around a line reads the shape, device or type of a variable."""
    scope = scope_at(line.file, line.line)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("shape", "device", "dtype")
        and ast.unparse(node.value) == name
        for node in (ast.walk(scope) if scope is not None else ())
    )


def _before_views(node: ast.expr) -> ast.expr:
    """`torch.arange(n)` of `torch.arange(n).view(-1, 1)`."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _VIEWS
    ):
        node = node.func.value
    return node


@_of_users_line
def index_made_on_gpu(line: _Line) -> _Edits:
    """`x[torch.arange(n), y]` becomes `x[torch.arange(n, device=x.device), y]`."""
    return tuple(
        edit
        for node in line.nodes
        if isinstance(node, ast.Subscript)
        for call in made_indices(node)
        for edit in line.replaced(call, line.with_argument(call, device_of_indexed(node)))
    )


def made_indices(node: ast.Subscript) -> list[ast.Call]:
    """The indices that torch makes in the brackets, on no device that is named."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if isinstance(part, ast.Call) and _makes(part)]


def device_of_indexed(node: ast.Subscript) -> str:
    """The argument that puts an index where the indexed tensor is."""
    is_named = isinstance(node.value, (ast.Name, ast.Attribute))
    return f"device={ast.unparse(node.value)}.device" if is_named else 'device="cuda"'


@_of_users_line
def stacked(line: _Line) -> _Edits:
    """`torch.tensor([a, b], device=d)` of GPU tensors becomes `torch.stack([a, b])`."""
    for node in line.nodes:
        if not isinstance(node, ast.Call):
            continue
        is_made = ast.unparse(node.func) in ("torch.tensor", "torch.as_tensor")
        if is_made and all(keyword.arg == "device" for keyword in node.keywords):
            return line.replaced(node, f"torch.stack({line.source(node.args[0])})")
    return ()


@_of_users_line
def filled(line: _Line) -> _Edits:
    """`y[0, 0] = 1.0` becomes `y[0, 0].fill_(1.0)`."""
    statement = line.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ()
    target = statement.targets[0]
    if not isinstance(target, ast.Subscript):
        return ()
    return line.replaced(statement, f"{line.source(target)}.fill_({line.source(statement.value)})")


@_of_users_line
def asserted(line: _Line) -> _Edits:
    """`assert condition, message` becomes `torch._assert_async(condition)`."""
    statement = line.statement
    condition = _as_tensor(line, statement.test) if isinstance(statement, ast.Assert) else ""
    return line.replaced(statement, f"torch._assert_async({condition})") if condition else ()


def _as_tensor(line: _Line, test: ast.expr) -> str:
    """A condition that stays on the GPU; "" for `and`, `in`, `.item()` and others that Python reads.

    `not` reads its operand too, and has a function of torch.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _as_tensor(line, test.operand)
        return f"torch.logical_not({inner})" if inner else ""
    if any(isinstance(node, ast.BoolOp | ast.IfExp | ast.Not) for node in ast.walk(test)) or reads(
        test
    ):
        return ""
    is_compared = isinstance(test, ast.Compare)
    if is_compared and (len(test.ops) > 1 or isinstance(test.ops[0], _OF_PYTHON)):  # type: ignore[attr-defined]
        return ""
    return line.source(test)


@_of_users_line
def selected(line: _Line) -> _Edits:
    """`a if condition else b`, and an `if` that binds one name, become torch.where."""
    if isinstance(line.statement, ast.If):
        return _selected_statement(line, line.statement)
    for node in line.nodes:
        if isinstance(node, ast.IfExp):
            condition = _as_tensor(line, node.test)
            parts = (condition, line.source(node.body), line.source(node.orelse))
            return line.replaced(node, f"torch.where({', '.join(parts)})") if condition else ()
    return ()


def _selected_statement(line: _Line, statement: ast.If) -> _Edits:
    (then, *more), otherwise = statement.body, statement.orelse
    bound = _bound_name(then)
    if more or bound is None or len(otherwise) > 1:
        return ()
    other = bound
    if otherwise:
        if _bound_name(otherwise[0]) != bound:
            return ()
        other = line.source(otherwise[0].value)  # type: ignore[attr-defined]
    value = line.source(then.value)  # type: ignore[attr-defined]
    test = _as_tensor(line, statement.test)
    text = f"{bound} = torch.where({test}, {value}, {other})"
    return line.replaced(statement, text) if test else ()


def _bound_name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


@_of_users_line
def without_check(line: _Line) -> _Edits:
    """`torch.linalg.inv(x)` becomes `torch.linalg.inv_ex(x).inverse`, also where torch factors a covariance."""
    for node in line.nodes:
        _, factored = factor_of_covariance(line.file, node)
        if factored and isinstance(node, ast.Call):
            return line.replaced(node, factored)
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
            found = _UNCHECKED.get(ast.unparse(node.func))
            if found is not None:
                return line.replaced(node, f"{found[0]}({line.source(node.args[0])}){found[1]}")
    return ()


def factor_of_covariance(file: str, call: ast.AST) -> tuple[str, str]:
    """Of `MultivariateNormal(mean, covariance)`: the argument that spares a check on the CPU, and the call with it."""
    if not isinstance(call, ast.Call) or last_name(call.func) != "MultivariateNormal":
        return "", ""
    given = [each for each in call.keywords if each.arg == "covariance_matrix"]
    covariance = given[0].value if given else call.args[1] if len(call.args) == 2 else None
    if covariance is None:
        return "", ""
    factor = f"scale_tril=torch.linalg.cholesky_ex({source_of(file, covariance)}).L"
    others = [source_of(file, each) for each in call.args if each is not covariance]
    others += [source_of(file, each) for each in call.keywords if each not in given]
    return factor, f"{source_of(file, call.func)}({', '.join([*others, factor])})"


@_of_users_line
def removed(line: _Line) -> _Edits:
    """A statement that only calls, such as `torch.cuda.synchronize()`, becomes `pass`."""
    statement = line.statement
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return line.replaced(statement, "pass")
    return ()


@_of_users_line
def with_device(line: _Line, name: str) -> _Edits:
    """A call `torch.rand(())` gets `device="cuda"`."""
    for node in line.nodes:
        if (
            isinstance(node, ast.Call)
            and _makes(node)
            and ast.unparse(node.func) == f"torch.{name}"
        ):
            return line.replaced(node, line.with_argument(node, 'device="cuda"'))
    return ()


@_of_users_line
def with_causality(line: _Line, *, is_causal: bool) -> _Edits:
    """`encoder(x, mask)` becomes `encoder(x, mask, is_causal=True)`; a decoder's argument is `tgt_is_causal`."""
    calls = [each for each in line.nodes if isinstance(each, ast.Call) and _hint_for_mask(each)]
    if len(calls) != 1:
        return ()
    argument = f"{_hint_for_mask(calls[0])}={is_causal}"
    return line.replaced(calls[0], line.with_argument(calls[0], argument))


def _hint_for_mask(call: ast.Call) -> str:
    """The argument that says whether the one mask of a call is causal; "" if it has none, or several."""
    given = {keyword.arg for keyword in call.keywords}
    if given & {"is_causal", "tgt_is_causal", None}:
        return ""
    if given & {"tgt_mask", "src_mask"}:
        return "tgt_is_causal" if "src_mask" not in given else ""
    others = given - {"mask", "src_key_padding_mask"}
    has_mask = "mask" in given or len(call.args) == 2
    return "is_causal" if has_mask and not others else ""


def put_before(file: str, line: int, code: str) -> _Edits:
    """One more line before a line of the user's own."""
    if is_library(file):
        return ()
    column = len(text := linecache.getline(file, line)) - len(text.lstrip()) + 1
    new = f"{code}\n{text[: column - 1]}"
    return (Edit(file, line, column, line, column, new),) if text else ()


def instead_of_call(file: str, call: ast.Call, code: str) -> _Edits:
    """The same call with other arguments."""
    return _replaced(file, call, code)


def instead_of_statement(file: str, statement: ast.stmt, code: str) -> _Edits:
    """The same statement as other code."""
    return _replaced(file, statement, code)


def _makes(call: ast.Call) -> bool:
    """Whether it is a call of torch that makes a tensor, on no device that is named."""
    name = ast.unparse(call.func)
    named = any(keyword.arg == "device" for keyword in call.keywords)
    return name.startswith("torch.") and name.removeprefix("torch.") in _MAKERS and not named


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


def _replaced(file: str, node: ast.stmt | ast.expr, text: str) -> _Edits:
    lines = linecache.getlines(file)
    if node.end_lineno is None or node.end_col_offset is None or node.end_lineno > len(lines):
        return ()
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    return (
        Edit(
            file=file,
            start_line=node.lineno,
            start_column=len(first[: node.col_offset].decode(errors="replace")) + 1,
            end_line=node.end_lineno,
            end_column=len(last[: node.end_col_offset].decode(errors="replace")) + 1,
            new_text=text,
        ),
    )
