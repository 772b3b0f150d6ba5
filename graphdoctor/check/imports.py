"""A file -> the files of its repository that it may import, found without running any of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# What imports by a name that is known only when it runs.
_DYNAMIC = frozenset({"import_module", "__import__", "exec", "eval", "runpy", "load_module",
                      "spec_from_file_location", "entry_points", "iter_modules"})  # fmt: skip


class Imports:
    """The Python files of a repository, by their names.

    A module may lie below any folder, since it is not known which of them will be on the search path:
    `a.b` is every `a/b.py` and `a/b/__init__.py` there is, so that rather too many are found.
    """

    def __init__(self, files: Iterable[Path], repository: Path) -> None:
        self._repository = repository
        self._by_name: dict[str, list[tuple[tuple[str, ...], Path]]] = {}
        for path in files:
            parts = path.with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts:
                self._by_name.setdefault(parts[-1], []).append((parts, path))
        self._direct: dict[Path, frozenset[Path] | None] = {}

    def reached_from(self, path: Path) -> frozenset[Path] | None:
        """The file and all that it may import, one after the other; None where that cannot be known."""
        reached: set[Path] = set()
        waiting = [path]
        while waiting:
            one = waiting.pop()
            if one in reached:
                continue
            direct = self._imported_by(one)
            if direct is None:
                return None
            reached.add(one)
            waiting += direct
        return frozenset(reached)

    def named(self, module: str) -> frozenset[Path]:
        """The files that a module of this name may be, and the packages that it lies in."""
        parts = tuple(module.split("."))
        found = (self._ending_in(parts[:count]) for count in range(1, len(parts) + 1))
        return frozenset(path for files in found for path in files)

    def _is_under_another_name(self, module: str) -> bool:
        """Whether a package is installed from the repository, and its folder is not called so."""
        top = module.partition(".")[0]
        return top not in self._by_name and self._repository in _folders_of(top)

    def _ending_in(self, parts: tuple[str, ...]) -> Iterator[Path]:
        for known, path in self._by_name.get(parts[-1], ()):
            if known[-len(parts) :] == parts:
                yield path

    def _imported_by(self, path: Path) -> frozenset[Path] | None:
        if path not in self._direct:
            self._direct[path] = self._read(path)
        return self._direct[path]

    def _read(self, path: Path) -> frozenset[Path] | None:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None
        nodes = list(ast.walk(tree))
        if any(_is_dynamic(node) for node in nodes):
            return None
        names = {name for node in nodes for name in _names(node, path)}
        if any(map(self._is_under_another_name, names)):
            return None
        return frozenset(file for name in names for file in self.named(name))


@cache
def _folders_of(top: str) -> frozenset[Path]:
    """Where a package that is installed lies, and all folders above; none of what is not there."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return frozenset()
    if spec is None:
        return frozenset()
    places = [
        Path(place).resolve()
        for place in (spec.origin, *(spec.submodule_search_locations or ()))
        if place
    ]
    return frozenset(folder for place in places for folder in place.parents)


def _is_dynamic(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    imported = isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _DYNAMIC
    is_model_eval = isinstance(node, ast.Attribute) and name == "eval"  # model.eval()
    return imported or (name in _DYNAMIC and not is_model_eval)


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    """Dotted names of modules, each of which may be an attribute of one as well."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = path.parent.parts[-1:] if node.level == 1 else ()
        if node.level > 1:
            above = path.parents[node.level - 1].parts[-1:]
        module = ".".join((*above, *((node.module,) if node.module else ())))
        if module:
            yield module
        yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)
