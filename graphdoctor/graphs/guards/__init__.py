"""Guards: whether a replay still computes what eager would, checked on each call of a captured model.

`Guard` watches the model's state: the attributes of its modules and of the objects that they hold, hooks, and the
addresses and layouts of tensors. `Modes` watches torch's modes. Both name what changed in a sentence. Everything
else is frozen at capture.
"""

from graphdoctor.graphs.guards.guard import Guard, all_hooks, has_global_hooks
from graphdoctor.graphs.guards.modes import Modes

__all__ = ["Guard", "Modes", "all_hooks", "has_global_hooks"]
