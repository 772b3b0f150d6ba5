"""Whether a PyTorch step is safe as a CUDA graph, why not, and what it would gain."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from graphdoctor.version import __version__

if TYPE_CHECKING:
    from graphdoctor.analyze import analyze

__all__ = ["__version__", "analyze"]


class _Package(ModuleType):
    """Makes `graphdoctor.analyze` the function, always, and imports torch only when asked for it.

    The module of the same name would take its place as soon as anything imports it: the import
    system stores each submodule in its package. `from graphdoctor.analyze import ...` works.
    """

    @property
    def analyze(self) -> object:
        return importlib.import_module("graphdoctor.analyze").analyze

    @analyze.setter
    def analyze(self, submodule: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
