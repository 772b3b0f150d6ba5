"""What a captured forward took from the host -> whether a replay still stands for it: the model's state, torch's modes.

`Guard` watches everything that the forward can read from its module: attributes however deep, closures, globals,
classes, hooks, and where the tensors lie. `Modes` watches torch's own switches, and `OfInputs` what code asks of
inputs. All are asked before, or right after, each replay, and say what changed in a sentence.
"""

from graphdoctor.graphs.guards.asked_of_tensors import OfInputs
from graphdoctor.graphs.guards.guard import Guard
from graphdoctor.graphs.guards.hooks import all_hooks, has_global_hooks
from graphdoctor.graphs.guards.modes import Modes

__all__ = ["Guard", "Modes", "OfInputs", "all_hooks", "has_global_hooks"]
