"""A function's syntax -> what its names may stand for, and which of them stand for one thing throughout."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache

from graphdoctor.record.host.expressions import Function

_PUT = frozenset(["append", "appendleft", "add", "extend", "insert", "update", "setdefault"])
_WHOLE = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Bindings:
    """Of the function that a frame runs; of no function, nothing is known to stay as it is."""

    def __init__(self, function: Function | None) -> None:
        self._values: dict[str, list[ast.AST | None]] = {}
        self._contents: dict[str, list[ast.AST | None]] = {}
        self._attributes: set[str] = set()
        self._repeated: set[str] = set()
        self._asked: set[str] = set()
        self._parameters: set[str] = set()
        self._alone: set[str] = set()  # bound as a whole, and not as an item of something
        if function is not None:
            arguments = ast.walk(function.args)
            self._parameters.update(one.arg for one in arguments if isinstance(one, ast.arg))
            self._read(function, is_repeated=False)

    def is_bound_once(self, name: str) -> bool:
        """Whether what it stands for now is what it stands for wherever the function names it."""
        count = len(self._values.get(name, ())) + (name in self._parameters)
        return count <= 1 and name not in self._repeated

    def only_value_of(self, name: str) -> ast.AST | None:
        """What the one statement that binds it gives to it alone."""
        is_known = self.is_bound_once(name) and name not in self._parameters
        return self._values[name][0] if is_known and name in self._alone else None

    def are_all(self, name: str, condition: Callable[[ast.AST], bool]) -> bool:
        """Whether it holds for everything in the function that is bound to a name."""
        if name in self._asked:  # as in `total = total + 1`
            return True
        self._asked.add(name)
        try:
            values = [*self._values.get(name, ()), *self._contents.get(name, ())]
            return all(value is not None and condition(value) for value in values)
        finally:
            self._asked.discard(name)

    def sets_attribute(self, name: str) -> bool:
        return name in self._attributes

    def _read(self, node: ast.AST, *, is_repeated: bool) -> None:
        for child in ast.iter_child_nodes(node):
            is_within = is_repeated or isinstance(child, _LOOPS)
            for name, held in _put_by(child):
                self._contents.setdefault(name, []).append(held)
            for target, value in _bound_by(child):
                if isinstance(target, ast.Name) and isinstance(child, _WHOLE):
                    self._alone.add(target.id)
                for one in ast.walk(target):
                    if isinstance(getattr(one, "ctx", None), ast.Load):
                        continue
                    if isinstance(one, ast.Attribute):
                        self._attributes.add(one.attr)
                    elif isinstance(one, ast.Name):
                        self._values.setdefault(one.id, []).append(value)
                        if is_within:
                            self._repeated.add(one.id)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._values.setdefault(child.name, []).append(None)
            self._read(child, is_repeated=is_within)


@cache
def bindings_of(function: Function | None) -> Bindings:
    return Bindings(function)


def _put_by(node: ast.AST) -> list[tuple[str, ast.AST | None]]:
    """What is put into a container that a name stands for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = getattr(node.func.value, "id", "")
        return [(name, one) for one in node.args] if node.func.attr in _PUT else []
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    into = [one.value for one in targets if isinstance(one, ast.Subscript)]
    value = getattr(node, "value", None)
    return [(one.id, value) for one in into if isinstance(one, ast.Name)]


def _bound_by(node: ast.AST) -> list[tuple[ast.AST, ast.AST | None]]:
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        return [(node.target, node.value)] if node.value is not None else []
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        return [(node.target, node.iter)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr)]
    return []
