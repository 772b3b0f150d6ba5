"""Whether a PyTorch step is safe as a CUDA graph, why not, and what it would gain."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphdoctor.captured import capture
    from graphdoctor.device.emulated import EmulatedDevice
    from graphdoctor.diagnose.no_sync import no_sync
    from graphdoctor.graphs.segments import Segments
    from graphdoctor.measure.audit.graph_audit import audit
    from graphdoctor.pipeline import analyze
    from graphdoctor.reporters.for_python import Report
    from graphdoctor.target.program.events import step
    from graphdoctor.values.allowed import allowed

__all__ = [
    "EmulatedDevice",
    "Report",
    "Segments",
    "__version__",
    "allowed",
    "analyze",
    "audit",
    "capture",
    "no_sync",
    "step",
]

__version__ = "0.1.0"

# Public names load when they are asked for: they import torch, which takes seconds.
_LOADED_FROM = {
    "EmulatedDevice": "graphdoctor.device.emulated",
    "Report": "graphdoctor.reporters.for_python",
    "Segments": "graphdoctor.graphs.segments",
    "allowed": "graphdoctor.values.allowed",
    "analyze": "graphdoctor.pipeline",
    "audit": "graphdoctor.measure.audit.graph_audit",
    "capture": "graphdoctor.captured",
    "load_ipython_extension": "graphdoctor.cli.notebook",
    "no_sync": "graphdoctor.diagnose.no_sync",
    "step": "graphdoctor.target.program.events",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(importlib.import_module(_LOADED_FROM[name]), name)
    except (ImportError, OSError) as error:
        from graphdoctor.values.errors import raise_if_of_torch

        raise_if_of_torch(error)
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_FROM})
