"""The inputs that the command line requests, as `--input 8x3x224x224:float16`, and who takes a batch size."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.values.errors import UsageError

_SPEC = re.compile(r"(?P<shape>scalar|\d+(x\d+)*)(:(?P<dtype>[a-z]\w*)(<(?P<below>\d+))?)?")
_DEFAULT_BELOW = 10  # integers are drawn from [0, 10) unless the specification says otherwise


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A tensor to draw: integers from [0, below), other values from a standard normal."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    below: int = _DEFAULT_BELOW

    def draw(self) -> torch.Tensor:
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(self.shape).to(self.dtype)
        if self.dtype is torch.bool:
            return torch.rand(self.shape) < 0.5
        return torch.randint(0, self.below, self.shape).to(self.dtype)


def parse_input(text: str) -> InputSpec:
    """Read "8x3x224x224", "8x128:int64<30522", "scalar:float32"; else a `UsageError`."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text!r} is not a tensor: write sizes joined by x, then a type if it is not "
            f"float32, such as 8x3x224x224:float16, or 8x128:int64<30522 for integers below 30522"
        )
    dtype = getattr(torch, match["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"--input {text!r}: {match['dtype']!r} is not a type of torch; "
            f"write one such as float32, float16, bfloat16, int64 or bool"
        )
    shape = () if match["shape"] == "scalar" else tuple(int(n) for n in match["shape"].split("x"))
    return InputSpec(shape, dtype, _upper_bound(text, match["below"], dtype))


def _upper_bound(text: str, below: str | None, dtype: torch.dtype) -> int:
    if below is None:
        return _DEFAULT_BELOW
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise UsageError(f"--input {text!r}: only integers have an upper bound, {dtype} has none")
    if not 0 < int(below) <= torch.iinfo(dtype).max + 1:
        raise UsageError(f"--input {text!r}: the upper bound must be from 1 to what {dtype} holds")
    return int(below)


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
