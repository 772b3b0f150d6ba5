"""Steps as people write them, with the lines that must be reported marked; all of them in STEPS."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction

from tests.steps import addresses, copies, host_state, reads, training

STEPS: tuple[Callable[[], object], ...] = tuple(
    value
    for module in (reads, copies, host_state, addresses, training)
    for name, value in vars(module).items()
    if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
)
