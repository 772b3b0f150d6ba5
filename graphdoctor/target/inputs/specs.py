"""`--input 8x3x224x224:float16` -> a description of a tensor, and from it a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
