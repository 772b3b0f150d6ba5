"""Compile the statements of a step into a function that runs them again."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import CellType, FrameType, FunctionType

from graphdoctor.target.program.names import Names, names_outside
from graphdoctor.target.program.statements import Span
from graphdoctor.target.state.variables import cells_of

_MISSING = object()


class NotRebuilt(Exception):
    """The statements cannot be run again on their own; the text is the reason, as a sentence."""


@dataclass(frozen=True, slots=True)
class Variables:
    """What the names of a step are.

    `varying` are bound anew by the program between the steps; `carried` by the step itself, for the
    next one; `fixed` by neither. `returned` are what the program reads after the step. `bound` are
    those that the step binds, and that it may read before.
    """

    varying: tuple[str, ...]
    carried: tuple[str, ...]
    fixed: tuple[str, ...]
    returned: tuple[str, ...]
    bound: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """`step(**inputs)` runs the statements; `cells` are its other variables, where it is in a function."""

    step: FunctionType
    inputs: tuple[str, ...]
    cells: Mapping[str, CellType] = field(default_factory=dict)


def variables_of(span: Span) -> Variables:
    """Sort the names in the statements. Raises NotRebuilt."""
    statements = span.statements
    names = Names(statements)
    _check(span, names)
    outside = names_outside(span.loop or span.owner, statements, ast.Store)
    if isinstance(span.owner, ast.FunctionDef):
        args = span.owner.args
        outside |= {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    local = _is_local(span)
    stored = names.stored
    if span.is_whole_file:
        stored = stored & (names.early | _mentioned_elsewhere(span))
    else:
        stored = {name for name in stored if name in names.early or not local(name)}
    varying = names.early & outside
    carried = stored - varying
    fixed = names.early - varying - carried
    after = names_outside(span.owner, statements, ast.Load)
    returned = (names.stored & names.sure & after) - carried
    bound = stored & (varying | carried)
    return Variables(*(tuple(sorted(each)) for each in (varying, carried, fixed, returned, bound)))


def _check(span: Span, names: Names) -> None:
    where = f"line {span.first_line}"
    if names.suspends:
        raise NotRebuilt(
            f"The step at {where} yields or awaits, so it cannot run outside its function."
        )
    if names.loaded & {"super", "__class__", "locals"}:
        raise NotRebuilt(f"The step at {where} uses super() or locals(), which need its function.")
    if any(name.startswith("__") and not name.endswith("__") for name in names.attributes):
        raise NotRebuilt(f"The step at {where} uses private names (__name) of its class.")


def _is_local(span: Span) -> Callable[[str], bool]:
    code = span.code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return lambda name: not span.is_whole_file and name in own


def _mentioned_elsewhere(span: Span) -> set[str]:
    """Names that functions of the file read: they see what the step binds."""
    functions = (n for n in ast.walk(span.owner) if isinstance(n, (ast.FunctionDef, ast.Lambda)))
    found: set[str] = set()
    for function in functions:
        body = function.body if isinstance(function.body, list) else [ast.Expr(function.body)]
        inner = Names(body)
        found |= inner.early
    return found


def rebuild(
    span: Span, variables: Variables, values: Mapping[str, object], *, inputs: tuple[str, ...],
    namespace: dict[str, object], own: Set[str] = frozenset(),
) -> Rebuilt:  # fmt: skip
    """Compile the statements as a function with the line numbers that they have.

    `values` are the variables as the first step saw them; those in `inputs` are given on each call.
    Those in `own` are the function's, also where the program has them in its file.
    """
    is_local = _is_local(span)

    def local(name: str) -> bool:
        return is_local(name) or name in own

    names = [*variables.fixed, *variables.carried, *variables.varying]
    closed = [n for n in names if local(n) and n not in inputs and n in values]
    rebound = [n for n in variables.bound if n not in inputs]
    body: list[ast.stmt] = []
    if shared := [n for n in rebound if n in closed]:
        body.append(ast.Nonlocal(shared))
    if public := [n for n in rebound if not local(n)]:
        body.append(ast.Global(public))
    body += [_Leaving().visit(copy.deepcopy(each)) for each in span.statements]
    # What the step rebinds is its state, also where the program resets it between some steps.
    returned = [n for n in variables.returned if n not in rebound]
    results = ast.Dict([ast.Constant(n) for n in returned], [_name(n) for n in returned])
    body.append(ast.Return(results))
    step = _function(_OURS, inputs, body, span.first_line)
    outer = _function(_OURS, closed, [step, ast.Return(_name(_OURS))], span.first_line)
    tree = ast.fix_missing_locations(ast.Module([outer], []))
    future = span.code.co_flags & _FUTURE_FLAGS
    code = compile(tree, span.code.co_filename, "exec", future, dont_inherit=True)
    made: dict[str, object] = {}
    exec(code, namespace, made)
    function = made[_OURS](**{n: values[n] for n in closed})  # type: ignore[operator]
    assert isinstance(function, FunctionType)
    name = span.code.co_name if not span.is_whole_file else "step"
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return Rebuilt(function, inputs, cells_of(function))


def frame_values(frame: FrameType, names: tuple[str, ...]) -> dict[str, object]:
    """Variables of a frame by name, its function's own before the globals."""
    held = frame.f_locals
    found = ((n, held.get(n, frame.f_globals.get(n, _MISSING))) for n in names)
    return {name: value for name, value in found if value is not _MISSING}


_OURS = "_graphdoctor_step"  # a name that no program has: the step may call a `step` of its own
_FUTURE_FLAGS = 0x1FE0000  # CO_FUTURE_*: Include/cpython/code.h


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _function(name: str, arguments: Sequence[str], body: list[ast.stmt], line: int) -> ast.stmt:
    made = ast.parse("def made(): pass").body[0]  # newer Pythons' functions have more fields
    assert isinstance(made, ast.FunctionDef)
    made.name, made.body = name, body
    made.args.args = [ast.arg(argument) for argument in arguments]
    made.lineno = made.end_lineno = line
    return made


class _Leaving(ast.NodeTransformer):
    """`continue` and `break` of the loop around the step end the step."""

    def _return(self, node: ast.stmt) -> ast.stmt:
        return ast.copy_location(ast.Return(None), node)

    visit_Continue = visit_Break = _return

    def _keep(self, node: ast.stmt) -> ast.stmt:
        return node

    visit_For = visit_While = visit_FunctionDef = visit_ClassDef = _keep
