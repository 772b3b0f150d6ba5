"""Make a `Target` of a file or an object: a step that runs repeatedly and is restored."""

from __future__ import annotations

from graphdoctor.target.resolve import from_object, resolve
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, named_values, snapshot
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import user_code

__all__ = [
    "Inputs",
    "Snapshot",
    "Target",
    "from_object",
    "named_tensors",
    "named_values",
    "resolve",
    "snapshot",
    "user_code",
]
