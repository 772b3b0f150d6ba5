"""The user's file or module -> it, imported as `python file.py` would, and undone on close."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from graphdoctor.target.user_code import is_user_file, user_code
from graphdoctor.values.errors import UsageError


class Workspace:
    """The import settings under which one target's code runs, from opening to `close`.

    They stay for the target's whole life, since code may import lazily in its step. Modules that
    the target imported from its own folder go with it: another target's `helpers.py` is another.
    """

    def __init__(self, folder: Path, argument: str) -> None:
        self._folder = str(folder)
        self._argv = sys.argv
        self._known = frozenset(sys.modules)
        self._had_folder = self._folder in sys.path
        sys.path.insert(0, self._folder)
        sys.argv = [argument]

    def close(self) -> None:
        """Put sys.path, sys.argv and sys.modules back. Harmless when called again."""
        if self._argv is not sys.argv:
            sys.argv = self._argv
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        for name, module in list(sys.modules.items()):
            if name not in self._known and self._is_own(module):
                del sys.modules[name]
        self.close = _nothing  # type: ignore[method-assign]

    def _is_own(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if self._had_folder or not isinstance(file, str) or not is_user_file(file):
            return bool(getattr(module, "__graphdoctor_target__", False))
        return Path(file).is_relative_to(self._folder)


def _nothing() -> None:
    pass


def run_file(path: Path) -> ModuleType:
    """Execute a file as a module named after it, but not "__main__".

    It is registered under its own name where that is free, because dataclasses, pickle and
    transformers look classes' modules up; else under a private one.
    """
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
    """Import `package.module` by its name."""
    with user_code(f"importing {name}"):
        return importlib.import_module(name)
