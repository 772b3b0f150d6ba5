"""Capture the forward and backward passes of a model's modules as CUDA graphs, in the modules' place.

What this package promises:

- `graph_modules(modules, run, restore=...)` calls `run()`, which must call the modules as the program will
  (with their backward pass, in training), then `restore()`, which must put state back; it watches with what
  the modules are called, and captures each call's forward, and its backward if there is one. Nothing of the
  modules is changed by that.
- The result's `installed()` swaps the modules' `forward` inside a `with` block; `install()` and `uninstall()`
  are the same by hand. Afterwards every module is exactly what it was. `release()` gives the memory back.
- A call that is not what was captured (other shapes, dtypes, strides, devices, values of arguments that are no
  tensors, grad or autocast mode, training flags, re-assigned weights, new hooks, ...) runs the original forward.
  `fallbacks` counts these calls by their reason, a sentence.
- Outputs and the gradients of inputs belong to the caller. A parameter's `.grad` may lie in the graph's memory
  and is moved out before the next backward pass would write over it.
- A module that cannot be graphed is in `left_out` with the reason, and its children are tried in its place.
"""

from __future__ import annotations

from graphdoctor.graphs.modules.call_graphs import Choices
from graphdoctor.graphs.modules.graph_modules import (
    graph_modules,
    graphed_already,
    modules_by_path,
    wrapper_of,
)
from graphdoctor.graphs.modules.graphed_modules import GraphedModules

__all__ = [
    "Choices",
    "GraphedModules",
    "graph_modules",
    "graphed_already",
    "modules_by_path",
    "wrapper_of",
]
