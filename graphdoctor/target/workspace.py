"""The user's file or module -> it, imported as `python file.py` would, and undone on close."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from graphdoctor.target.user_code import is_user_file, user_code
from graphdoctor.values.errors import UsageError

_OF_A_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


class Workspace:
    """The import settings under which one target's code runs, from opening to `close`.

    They stay for the target's whole life, since code may import lazily in its step. Modules that
    the target imported from its own folder go with it: another target's `helpers.py` is another.
    A project that is not installed is importable too, after all that is: the folder that the
    target's package lies in, the project's own, and `src` in it.
    """

    def __init__(self, folder: Path, argument: str) -> None:
        self._argv = sys.argv
        self._known = frozenset(sys.modules)
        before = frozenset(sys.path)
        others = [str(other) for other in _project_folders(folder) if str(other) not in before]
        self._added = [str(folder), *(other for other in others if other != str(folder))]
        self._own = [Path(one) for one in self._added if one not in before]
        sys.path[:] = [self._added[0], *sys.path, *self._added[1:]]
        sys.argv = [argument]

    def close(self) -> None:
        """Put sys.path, sys.argv and sys.modules back. Harmless when called again."""
        if self._argv is not sys.argv:
            sys.argv = self._argv
        for folder in self._added:
            if folder in sys.path:
                sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if name not in self._known and self._is_own(module):
                del sys.modules[name]
        self.close = _nothing  # type: ignore[method-assign]

    def _is_own(self, module: ModuleType) -> bool:
        known = vars(module)  # a module that imports lazily may fail to, when it is asked
        file = known.get("__file__")
        if (
            isinstance(file, str)
            and is_user_file(file)
            and any(map(Path(file).is_relative_to, self._own))
        ):
            return True
        return bool(known.get("__graphdoctor_target__", False))


def _nothing() -> None:
    pass


def run_file(path: Path) -> ModuleType:
    """Execute a file as a module named after it, but not "__main__".

    It is registered under its own name where that is free, because dataclasses, pickle and
    transformers look classes' modules up; else under a private one. A file of a package that
    imports from it by dots is imported as the package's module, which needs the package.
    """
    package = _package_of(path) if _has_relative_imports(path) else ""
    if package:
        with user_code(f"importing {path.name}"):
            module = importlib.import_module(f"{package}.{path.stem}")
        if getattr(module, "__file__", None) and Path(module.__file__ or "").resolve() == path:
            module.__dict__["__graphdoctor_target__"] = True
            return module
    name = path.stem if path.stem not in sys.modules else f"{path.stem}@{path.parent}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__graphdoctor_target__"] = True
    sys.modules[name] = module
    with user_code(f"importing {path.name}"):
        spec.loader.exec_module(module)
    return module


def import_module(name: str) -> ModuleType:
    """Import `package.module` by its name. Raises UsageError where there is no such module."""
    with user_code(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and one that it imports is not
            raise UsageError(
                f"there is no module {error.name} (looked in {Path.cwd()} and among what is installed for"
                f" {sys.executable})"
            ) from None


def _package_root(folder: Path) -> Path:
    """The folder that holds the outermost package around a folder; the folder itself without any."""
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _package_of(path: Path) -> str:
    """The package that a file is a module of; without `__init__.py` it is named after its folders."""
    root = _package_root(path.parent)
    if root == path.parent:
        root = [*_project_folders(root)][-1]
    parts = path.parent.relative_to(root).parts
    return ".".join(parts) if all(map(str.isidentifier, parts)) else ""


def _project_folders(folder: Path) -> Iterator[Path]:
    """Where a package of the same project may lie; a plain folder without a project has none."""
    yield _package_root(folder)
    for parent in (folder, *folder.parents):
        if any((parent / name).exists() for name in _OF_A_PROJECT):
            yield parent
            if (parent / "src").is_dir():
                yield parent / "src"
            return


def _has_relative_imports(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False  # whoever runs it says why
    return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
