"""A module that a step calls, and the frames that led there -> the statement that puts it into a variable."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType

import torch

from graphdoctor.source.trees import WHOLE_FILE, Owner, owner_of, tree_of
from graphdoctor.target.program.events import At
from graphdoctor.target.program.statements import blocks_to
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.program import CalledModule

_CAPTURED = "it is captured already"
_WRAPPERS = {
    "OptimizedModule": "it is compiled by torch.compile, which captures graphs itself where"
    ' mode="reduce-overhead" is given',
    "DistributedDataParallel": "it synchronizes gradients while its backward pass runs, which no graph of"
    " one module does",
    "DataParallel": "it copies its module in each call",
    "ScriptModule": "it is TorchScript",
}

_After = tuple[int, int]  # the last line of a statement, and the column in which it begins
Binding = tuple[
    object, str, str, _After
]  # what is bound, to which expression, in which file, where


def called_module(
    module: torch.nn.Module, places: Sequence[At], *, is_compiled: bool
) -> CalledModule:
    """What the program calls it, and the line after which it can be put in another's place."""
    kind = type(module).__name__
    trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    kinds = ["OptimizedModule"] if is_compiled else [c.__name__ for c in type(module).__mro__]
    if reason := next((_WRAPPERS[name] for name in kinds if name in _WRAPPERS), ""):
        return CalledModule(kind, trains=trains, reason=reason)
    found = next(_bindings(module, places), None)
    if found is None:
        reason = "no statement of the program was found that puts it into a variable"
        return CalledModule(kind, trains=trains, reason=reason)
    value, expression, file, (line, column) = found
    if value is not module:
        return CalledModule(kind, trains=trains, reason=_CAPTURED)
    return CalledModule(
        kind, expression=expression, file=file, line=line, column=column, trains=trains
    )


def _bindings(module: torch.nn.Module, places: Sequence[At]) -> Iterator[Binding]:
    """Variables of the program's own functions and files before attributes of its objects; outermost first."""
    own = [
        at for at in reversed(places) if at.frame is not None and is_user_file(at.code.co_filename)
    ]
    for at in own:
        yield from _variables(module, at)
    for at in own:
        yield from _attributes(module, at)


def _variables(module: torch.nn.Module, at: At) -> Iterator[Binding]:
    assert at.frame is not None
    file, local = at.code.co_filename, at.code.co_name != WHOLE_FILE
    if local:
        for name, value in _named(module, at.frame.f_locals):
            if after := _last_binding(owner_of(at.code), name, before=at.line):
                yield value, name, file, after
    tree = tree_of(file)
    is_running = not local
    for name, value in _named(module, at.frame.f_globals):
        if after := _last_binding(tree, name, before=at.line if is_running else None):
            yield value, name, file, after


def _named(module: torch.nn.Module, names: Mapping[str, object]) -> list[tuple[str, object]]:
    """Under which names it stands there, also captured: such a module shares its attributes."""
    own = vars(module)
    held = ((n, v) for n, v in names.items() if issubclass(type(v), torch.nn.Module))
    return [(n, v) for n, v in held if v is module or vars(v) is own]


def _attributes(module: torch.nn.Module, at: At) -> Iterator[Binding]:
    """`self.name`, where a method of the object's own class puts it there."""
    assert at.frame is not None
    holder = at.frame.f_locals.get("self")
    if holder is None:
        return
    held = getattr(holder, "__dict__", {})
    named = {**held, **held.get("_modules", {})}
    for name, value in _named(module, named):
        for made in (getattr(holder, "__init__", None), getattr(holder, "setup", None)):
            code = getattr(inspect.unwrap(made) if callable(made) else None, "__code__", None)
            if not isinstance(code, CodeType) or not is_user_file(code.co_filename):
                continue
            if after := _last_binding(owner_of(code), name, before=None, of_self=True):
                yield value, f"self.{name}", code.co_filename, after


def _last_binding(
    owner: Owner | None, name: str, *, before: int | None, of_self: bool = False
) -> _After | None:
    """The statement that binds it last, in a block that leads to line `before`; a branch as a whole."""
    if owner is None:
        return None
    blocks = [(owner.body, False)] if before is None else blocks_to(owner, before)
    found = None
    for block, repeats in blocks:
        for statement in block:
            end = statement.end_lineno or statement.lineno
            if before is not None and end >= before:
                break
            # In a loop, `model = model.train()` would put what was put there into itself.
            if _binds(statement, name, of_self=of_self) and not (
                repeats and _reads(statement, name)
            ):
                found = end, statement.col_offset
    return found


def _reads(statement: ast.stmt, name: str) -> bool:
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)


def _binds(statement: ast.stmt, name: str, *, of_self: bool) -> bool:
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            is_attribute = isinstance(node, ast.Attribute)
            if is_attribute and of_self and node.attr == name:  # type: ignore[union-attr]
                return isinstance(node.value, ast.Name) and node.value.id == "self"  # type: ignore[union-attr]
            if not is_attribute and not of_self and node.id == name:  # type: ignore[union-attr]
                return True
        waiting.extend(ast.iter_child_nodes(node))
    return False
