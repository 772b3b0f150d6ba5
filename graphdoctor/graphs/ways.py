"""Tensors -> whether others lie as they did: hundreds are asked before each replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

_MOST_MODES = 4  # between which calls may change
_NAMES = ("shape", "strides", "dtype", "layout", "class")


class Ways:
    """Shapes, strides, dtypes and classes of tensors, which are not held.

    Dynamo's guards compare them in one call into C++. Those also see gradients, inference mode and
    autocast, which do not count here: where they say no, those of other modes are asked, and then a
    look decides and makes some under the modes of now.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._ways = list(map(_way, tensors))
        self.is_known = _guards(tensors)
        self._of_modes = [self.is_known]

    def are_those_of(self, tensors: list[torch.Tensor]) -> bool:
        return self.is_known(*tensors) or self.look(tensors)

    def look(self, tensors: list[torch.Tensor]) -> bool:
        """Ask each tensor, unless what was made under other modes knows them."""
        known = next((each for each in self._of_modes if each(*tensors)), None)
        if known is None:
            if list(map(_way, tensors)) != self._ways:
                return False
            known = _guards(tensors)
            self._of_modes = [known, *self._of_modes][:_MOST_MODES]
        self.is_known = known
        return True

    def differences(self, place: int, tensor: torch.Tensor) -> Iterator[tuple[str, object, object]]:
        """What of a tensor differs from the one that had its place: its name, what it was, what it is."""
        for name, before, now in zip(_NAMES, self._ways[place], _way(tensor), strict=True):
            if before != now:
                yield name, before, now


def _way(tensor: torch.Tensor) -> tuple[object, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(tensor.shape), strides, tensor.dtype, tensor.layout, type(tensor)


def _guards(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return check if check(*tensors) else _unknown
    except Exception:  # another torch's guards want other arguments
        return _unknown


def _unknown(*tensors: torch.Tensor) -> bool:
    return False
