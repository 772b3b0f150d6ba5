"""A tensor that the step builds from a list of Python numbers: the same numbers without a copy and without a read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from graphdoctor.rules.causes.edits import instead_of_call
from graphdoctor.rules.causes.source import (
    changed_name,
    names_in,
    statement_at,
    targets_of,
    with_expressions,
)
from graphdoctor.source.trees import calls_in, holds, last_name, scope_at, statements_of
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location, is_library

_BUILDING = frozenset({"tensor", "as_tensor"})
_MOST_NUMBERS = 64  # a fill kernel each
_SIZES = frozenset({"shape", "size", "len", "numel", "ndim"})
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
_REDUCTIONS = {"amax": "max", "max": "max", "amin": "min", "min": "min", "sum": "sum"}
_SAME = "The numbers are sizes, so they are the same in each replay: a graph is for inputs of one shape."
# What takes a size or a bound as a Python number only.
_TAKES_NUMBER = frozenset({
    *("arange", "chunk", "empty", "expand", "eye", "full", "linspace", "narrow", "new_empty", "new_full"),
    *("new_ones", "new_zeros", "ones", "rand", "randint", "randn", "range", "repeat", "reshape", "split"),
    *("tril_indices", "triu_indices", "unflatten", "view", "zeros"),
})  # fmt: skip


class _Built(NamedTuple):
    """`torch.tensor(numbers, ...)`, with the line of its statement."""

    call: ast.Call
    numbers: ast.expr
    line: int


def for_sizes(place: Location, count: int) -> Cure | None:
    """Instead of a tensor of `count` sizes; of counts for repeat_interleave, with the size of its result."""
    statement = own_statement(place)
    built = (
        _built_in(statement, place.line)
        if statement is not None and count <= _MOST_NUMBERS
        else None
    )
    if built is None or not any(map(_is_size, _elements(built.numbers, place))):
        return None
    code = _filled(built.call, built.numbers)
    if not code:
        return None
    repetition = _repetition_in(statement)
    if repetition is not None and repetition.args[-1] is built.call:
        (*others, _) = map(ast.unparse, repetition.args)
        given = ", ".join([*others, code, f"output_size=sum({ast.unparse(built.numbers)})"])
        code = f"{ast.unparse(repetition.func)}({given})"
        what = f"{_SAME} Fill the tensor on the GPU, and pass the size of the result."
        what = f"{what} Replace the call of `repeat_interleave` with:"
        return Cure(what, (code,), instead_of_call(place.file, repetition, code))
    what = f"{_SAME} Fill the tensor on the GPU: `torch.stack([torch.full((), n, device=device) for n in numbers])`."
    return Cure(what, edits=instead_of_call(place.file, built.call, code))


def for_repetition(place: Location | None, count: int) -> Cure:
    """Instead of repeat_interleave by `count` counts: with the size of its result, if the program has them in a list.

    Where the counts are sizes, it is the cure of their tensor: it cures both.
    """
    statement = own_statement(place)
    repetition = _repetition_in(statement)
    if repetition is None or statement is None or place is None:
        return Cure(
            "Pass output_size=, the total number of repetitions, which must be the same in each step."
        )
    counts = repetition.args[-1]
    assert isinstance(counts, ast.Call)
    if cure := for_sizes(Location(place.file, counts.lineno, place.function), count):
        return cure
    total = f"output_size=sum({ast.unparse(counts.args[0])})"
    sized = f"{ast.unparse(repetition)[:-1]}, {total})"
    return Cure(
        "Pass the size of the result. The sum must be the same in each step, as with a fixed batch. The statement"
        " becomes:",
        (with_expressions(statement, {repetition: sized}),),
    )


def for_number_read(place: Location | None) -> Cure | None:
    """Instead of a number that is read from a tensor, if the program has it on the CPU, or needs it there."""
    statement = own_statement(place)
    if statement is None or place is None:
        return None
    read = next((each for each in calls_in(statement) if _reads_number(each)), None)
    if read is None:
        return None
    assert isinstance(read.func, ast.Attribute)
    reduced = _reduction(read.func.value)
    if reduced is not None and (cure := _from_list(place, statement, read, *reduced)) is not None:
        return cure
    taker = _taker(place, statement, read)
    if not taker:
        return None
    return Cure(
        f"`{taker}` takes a Python number. Compute this number on the CPU, from shapes or other Python numbers. If only"
        " the GPU knows it, use its largest possible value, and mask what exceeds it."
    )


def _from_list(
    place: Location, statement: ast.stmt, read: ast.Call, name: str, function: str
) -> Cure | None:
    """The largest, smallest or total number of the list that the tensor of this name is built from."""
    scope = scope_at(place.file, place.line)
    before = (
        [each for each in statements_of(scope) if each.lineno < statement.lineno] if scope else []
    )
    bound = next((each for each in reversed(before) if name in targets_of(each)), None)
    built = _built_in(bound, bound.lineno) if bound is not None else None
    if bound is None or built is None:
        return None
    text = f"{function}({_generated(built.numbers)})"
    between = [bound, *(each for each in before if each.lineno > bound.lineno)]
    read_names = {one.partition(".")[0] for one in names_in(built.numbers)}
    if not any(read_names & targets_of(each) for each in between):
        code = with_expressions(statement, {read: text})
        what = f"The program has these numbers in a list. Replace line {statement.lineno} with:"
        return Cure(what, (code,), instead_of_call(place.file, read, text))
    if not isinstance(statement, ast.Assign) or statement.value is not read:
        return None
    return Cure(
        f"The program has these numbers in a list, until line {bound.lineno} replaces the list. Delete line"
        f" {statement.lineno}, and put before line {bound.lineno}:",
        (f"{ast.unparse(statement.targets[0])} = {text}",),
    )


def own_statement(place: Location | None) -> ast.stmt | None:
    """The statement of the program's own code on a line; None for a block, such as an `if`."""
    found = statement_at(place.file, place.line) if place and not is_library(place.file) else None
    return found if isinstance(found, _SIMPLE) else None


def _built_in(statement: ast.stmt | None, line: int) -> _Built | None:
    calls = calls_in(statement) if statement is not None else ()
    for call in calls:
        if last_name(call.func) in _BUILDING and len(call.args) == 1 and holds(call, line):
            return _Built(call, call.args[0], statement.lineno)  # type: ignore[union-attr]
    return None


def _elements(numbers: ast.expr, place: Location) -> Iterator[ast.expr]:
    """The expressions whose values a list holds, where the line or the function before it says so."""
    if isinstance(numbers, ast.ListComp):
        yield numbers.elt
    elif isinstance(numbers, ast.List):
        yield from numbers.elts
    elif isinstance(numbers, ast.Name):
        scope = scope_at(place.file, place.line)
        for each in statements_of(scope) if scope is not None else ():
            if each.lineno >= place.line:
                return
            if isinstance(each, ast.Assign) and numbers.id in targets_of(each):
                yield from (
                    _elements(each.value, place) if not isinstance(each.value, ast.Name) else ()
                )
            elif changed_name(Location(place.file, each.lineno), "append") == numbers.id:
                yield from (
                    arg
                    for call in calls_in(each)
                    if last_name(call.func) == "append"
                    for arg in call.args
                )


def _is_size(node: ast.expr) -> bool:
    return any(last_name(part) in _SIZES for part in ast.walk(node))


def _filled(call: ast.Call, numbers: ast.expr) -> str:
    """The tensor of these numbers by a kernel for each, with the device and dtype of the call; "" without a device."""
    given = {each.arg: ast.unparse(each.value) for each in call.keywords}
    if "device" not in given or given.keys() - {"device", "dtype"}:
        return ""
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    if isinstance(numbers, ast.ListComp):
        loops = _generated(numbers).removeprefix(ast.unparse(numbers.elt))
        return f"torch.stack([torch.full((), {ast.unparse(numbers.elt)}, {options}){loops}])"
    return f"torch.stack([torch.full((), n, {options}) for n in {ast.unparse(numbers)}])"


def _generated(numbers: ast.expr) -> str:
    """The list, or `n for ...` of a comprehension, as the argument of a function."""
    return ast.unparse(numbers)[1:-1] if isinstance(numbers, ast.ListComp) else ast.unparse(numbers)


def _repetition_in(statement: ast.stmt | None) -> ast.Call | None:
    """`repeat_interleave(x, torch.tensor(counts))` of a statement that repeats once."""
    calls = [*calls_in(statement)] if statement is not None else []
    match [each for each in calls if last_name(each.func) == "repeat_interleave"]:
        case [ast.Call(args=[*_, ast.Call(args=[_, *_]) as counts], keywords=[]) as call]:
            return call if last_name(counts.func) in _BUILDING else None
    return None


def _reads_number(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "item" and not call.args


def _reduction(node: ast.expr) -> tuple[str, str] | None:
    """The tensor and the function of Python's of `x.amax()` and `torch.max(x)`."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="torch"), attr=name),
            args=[ast.Name(id=tensor)],
            keywords=[],
        ):
            found = tensor, name
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=tensor), attr=name), args=[], keywords=[]
        ):
            found = tensor, name
        case _:
            return None
    return (found[0], _REDUCTIONS[found[1]]) if found[1] in _REDUCTIONS else None


def _taker(place: Location, statement: ast.stmt, read: ast.Call) -> str:
    """The function that takes the number as a size: on the line, or of a variable that the line binds; or ""."""
    direct = _call_with(statement, read)
    if direct or not isinstance(statement, ast.Assign) or statement.value is not read:
        return direct
    scope, names = scope_at(place.file, place.line), targets_of(statement)
    later = (
        [each for each in statements_of(scope) if each.lineno > statement.lineno] if scope else []
    )
    uses = (
        (each, node)
        for each in later
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
    )
    return next(filter(None, (_call_with(each, node) for each, node in uses)), "")


def _call_with(statement: ast.stmt, argument: ast.expr) -> str:
    for call in calls_in(statement):
        given = [*call.args, *(each.value for each in call.keywords)]
        flat = [
            part
            for each in given
            for part in (each.elts if isinstance(each, ast.Tuple) else [each])
        ]
        if last_name(call.func) in _TAKES_NUMBER and argument in flat:
            return last_name(call.func)
    return ""
