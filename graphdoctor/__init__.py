"""Whether a PyTorch step is safe as a CUDA graph, why not, and what it would gain."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from graphdoctor.version import __version__

if TYPE_CHECKING:
    from graphdoctor.analyze import analyze
    from graphdoctor.drop_in import capture

__all__ = ["__version__", "analyze", "capture"]


class _Package(ModuleType):
    """Makes `graphdoctor.analyze` and `.capture` functions, always; imports torch only when asked for.

    The modules of the same names would take their places as soon as anything imports them: the
    import system stores each submodule in its package. `from graphdoctor.analyze import ...` works.
    """

    @property
    def analyze(self) -> object:
        return importlib.import_module("graphdoctor.analyze").analyze

    @analyze.setter
    def analyze(self, submodule: ModuleType) -> None:
        pass

    @property
    def capture(self) -> object:
        return importlib.import_module("graphdoctor.drop_in").capture

    @capture.setter
    def capture(self, submodule: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
