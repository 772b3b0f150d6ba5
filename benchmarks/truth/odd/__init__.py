"""The odd steps, a file for each thing that is odd in them; each file adds its own to `STEPS`."""

from odd import (  # noqa: F401
    autograd,
    compilers,
    functional,
    host,
    indexing,
    inputs,
    modules,
    tensors,
    training,
)
from odd.step import STEPS

__all__ = ["STEPS"]
