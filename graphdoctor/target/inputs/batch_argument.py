"""A user's function and a batch size -> the function called with it, where it takes one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

_NAMES = ("batch_size", "batch")


class BatchArgument:
    """Gives a wanted batch size to the functions of a file, and remembers which of them take one.

    With `size` None every function runs as it is, and `taken_by` says which could be asked.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self._takers: list[str] = []

    @property
    def taken_by(self) -> str:
        """ "get_model(batch_size=...) and get_inputs(batch_size=...)"; "" where none takes it."""
        return " and ".join(dict.fromkeys(self._takers))

    def bound(self, function: Any, name: str) -> Any:
        """The function, with the size as its default where it has such a parameter."""
        parameter = _parameter(function)
        if parameter is None:
            return function
        self.note(name, parameter)
        return function if self.size is None else _with(function, parameter, self.size)

    def note(self, name: str, parameter: str) -> None:
        """Remember that something called `name` takes the size."""
        self._takers.append(f"{name}({parameter}=...)")


def _parameter(function: Any) -> str | None:
    """The parameter for the batch size: it has a whole number, or None, as its default.

    Without a default it is something else: the `batch` of a training step is its data.
    """
    if not inspect.isfunction(function):
        return None
    parameters = inspect.signature(function).parameters
    for name in _NAMES:
        if name in parameters:
            default = parameters[name].default
            if default is None or (isinstance(default, int) and not isinstance(default, bool)):
                return name
    return None


def _with(function: Callable[..., object], parameter: str, size: int) -> Callable[..., object]:
    @functools.wraps(function)
    def sized(*args: object, **kwargs: object) -> object:
        return function(*args, **{parameter: size, **kwargs})

    return sized
