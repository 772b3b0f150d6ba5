"""What a caller may choose about graphed modules, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _always(path: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Choices:
    """How modules are graphed.

    `owns_outputs`: what a call returns is the caller's; without it the next call of the module
    writes over it. `owns_gradients`: each parameter's gradient is copied out of the graph's memory
    at once, for code that keeps old `.grad` tensors after setting `.grad` to None.
    `most_graphs` bounds the graphs of one module, for calls of different kinds and for calls
    whose backward passes come later. `is_worth` says of a path whether it may be graphed at all.
    """

    owns_outputs: bool = True
    owns_gradients: bool = False
    most_graphs: int = 8
    warm_ups: int = 3
    is_worth: Callable[[str], bool] = _always
