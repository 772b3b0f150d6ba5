"""The names that statements bind, and those that they read before they bind them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from graphdoctor.source.trees import leaves


class Names(ast.NodeVisitor):
    """Reads statements in the order in which they run.

    `early`: read where nothing in the statements is sure to have bound it. A loop is taken to run at
    least once, as the steps that were seen did.
    """

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self.stored: set[str] = set()
        self.loaded: set[str] = set()
        self.early: set[str] = set()
        self.sure: set[str] = set()
        self.suspends = False  # a yield or await
        self.attributes: set[str] = set()
        for statement in statements:
            self.visit(statement)

    def _load(self, name: str) -> None:
        self.loaded.add(name)
        if name not in self.sure:
            self.early.add(name)

    def _store(self, name: str) -> None:
        self.stored.add(name)
        self.sure.add(name)

    def visit_Name(self, node: ast.Name) -> None:
        (self._load if isinstance(node.ctx, ast.Load) else self._store)(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.add(node.attr)
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all((node.value, *node.targets))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._visit_all((node.value, node.target))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._load(node.target.id)
        self._visit_all((node.value, node.target))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all((node.value, node.target))

    def visit_For(self, node: ast.For) -> None:
        self._visit_all((node.iter, node.target, *node.body, *node.orelse))

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = set(self.sure)
        self._visit_all(node.body)
        after, self.sure = self.sure, before
        self._visit_all(node.orelse)
        if leaves(node.orelse):
            self.sure = after
        elif not leaves(node.body):
            self.sure &= after

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_all(node.body)
        after = set(self.sure)
        for handler in node.handlers:
            self._visit_all(handler.body)
            self.sure = set(after)
        self._visit_all((*node.orelse, *node.finalbody))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._visit_all(node.body)

    def _comprehension(self, node: Any) -> None:
        before, stored = set(self.sure), set(self.stored)
        for part in node.generators:
            self._visit_all((part.iter, part.target, *part.ifs))
        self._visit_all([getattr(node, n) for n in ("elt", "key", "value") if hasattr(node, n)])
        self.sure, self.stored = before, stored

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _function(self, node: Any) -> None:
        inner = Names(node.body if isinstance(node.body, list) else [ast.Expr(node.body)])
        args = node.args
        own = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        own |= {a.arg for a in (args.vararg, args.kwarg) if a is not None}
        for name in inner.loaded - own - inner.stored:
            self._load(name)
        self.attributes |= inner.attributes
        if not isinstance(node, ast.Lambda):
            self._store(node.name)

    visit_FunctionDef = visit_Lambda = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.generic_visit(node)
        self._store(node.name)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._store(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import

    def _suspend(self, node: ast.AST) -> None:
        self.suspends = True

    visit_Yield = visit_YieldFrom = visit_Await = visit_AsyncFor = visit_AsyncWith = _suspend

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def names_outside(
    owner: ast.AST, inside: Iterable[ast.stmt], context: type[ast.expr_context]
) -> set[str]:
    """Names below `owner` that are bound (ast.Store) or read (ast.Load), but for those in `inside`."""
    skipped = {id(node) for statement in inside for node in ast.walk(statement)}
    names = (node for node in ast.walk(owner) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, context) and id(node) not in skipped}


def names_in_file(text: str) -> set[str]:
    """All names that a file binds or reads somewhere, so that a new one can be another."""
    nodes = [*ast.walk(ast.parse(text))]
    imports = (ast.Import, ast.ImportFrom)
    names = Names(n for n in nodes if isinstance(n, imports)).stored
    names |= {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    names |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return names | {n.id for n in nodes if isinstance(n, ast.Name)}
