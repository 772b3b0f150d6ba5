"""Every scenario of PyTorch's tests that is a target of its own, by the name of its function."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction

from tests.scenarios import state, training, values

TARGETS: dict[str, Callable[[], object]] = {
    name: value
    for module in (values, state, training)
    for name, value in vars(module).items()
    if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
}
