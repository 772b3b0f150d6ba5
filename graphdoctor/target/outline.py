"""What a Python file defines at its top level, found without running the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphdoctor.source.trees import last_name
from graphdoctor.values.errors import UsageError, UserCodeError
from graphdoctor.values.file_kinds import refuse_saved
from graphdoctor.values.target_spec import check_file


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class with its methods' names, its bases' last names, and its constructor's parameters."""

    name: str
    methods: frozenset[str]
    bases: tuple[str, ...]
    parameters: frozenset[str]

    @property
    def may_be_module(self) -> bool:
        """A class without bases, or with plain ones only, is no nn.Module; others might be."""
        return any(base not in _PLAIN_BASES for base in self.bases)


_PLAIN_BASES = frozenset(
    {"object", "ABC", "Protocol", "NamedTuple", "TypedDict", "Enum", "Generic"}
)


@dataclass(frozen=True, slots=True)
class Outline:
    """The names that a file binds, its classes, and whether a star import may bring in more."""

    names: frozenset[str]
    classes: tuple[ClassOutline, ...]
    has_star_import: bool

    def has(self, *names: str) -> bool:
        return self.has_star_import or all(name in self.names for name in names)


def outline(path: Path) -> Outline:
    """Read and parse a file; a missing, unreadable or wrong one is one clear sentence."""
    check_file(path)
    refuse_saved(path)
    try:
        return _outline_of(ast.parse(path.read_bytes(), filename=str(path)))
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        text = (error.text or "").rstrip("\n")
        frames = (
            f'  File "{path}", line {error.lineno}\n    {text.strip()}\nSyntaxError: {error.msg}'
        )
        shown = f": {text.strip()}" if text.strip() else ""
        raise UserCodeError(f"{where} has a syntax error, {error.msg}{shown}", frames) from None
    except ValueError as error:  # null bytes, in some versions of Python
        raise UserCodeError(f"{path} is not Python source: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _outline_of(tree: ast.Module) -> Outline:
    names: set[str] = set()
    classes: list[ClassOutline] = []
    star = False
    for node in top_level(tree.body):
        names.update(_bound_names(node))
        if isinstance(node, ast.ClassDef):
            classes.append(_class_outline(node))
        star = star or (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
    return Outline(frozenset(names), tuple(classes), star)


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of the module's own scope, also inside if, try, with and for."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, None)
            if inner and not isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                yield from top_level(inner)
        for handler in getattr(node, "handlers", []):
            yield from top_level(handler.body)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _class_outline(node: ast.ClassDef) -> ClassOutline:
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    init = next((f for f in functions if f.name == "__init__"), None)
    arguments = [*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs] if init else []
    return ClassOutline(
        name=node.name,
        methods=frozenset(function.name for function in functions),
        bases=tuple(
            last_name(base.value if isinstance(base, ast.Subscript) else base)
            for base in node.bases
        ),
        parameters=frozenset(argument.arg for argument in arguments),
    )
