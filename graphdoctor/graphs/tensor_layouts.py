"""Addresses and layouts of tensors, compared before each replay: hundreds at a time, in C++ where this torch can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_address = torch.Tensor.data_ptr
wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_MOST_MODES = 4  # between which calls may change
_NAMES = ("shape", "strides", "dtype", "layout", "class")


def _one_by_one(
    tensors: list[torch.Tensor], addresses: list[int | None], every: Sequence[int]
) -> bool:
    return list(map(_address, tensors)) == addresses


# Whether all tensors are at these addresses; `every` are their indices. In C++ in builds for CUDA.
are_at: Callable[[list[torch.Tensor], list[int | None], Sequence[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _one_by_one
)


class TensorLayouts:
    """Shapes, strides, dtypes and classes of tensors, which are not held.

    Dynamo's guards compare them in one call into C++. Those also see gradients, inference mode and
    autocast, which do not count here: a failed check is repeated with the guards of other modes, then
    tensor by tensor, which makes guards for the current modes. With `grad`, required gradients count, except for
    calls under no_grad.
    """

    def __init__(self, tensors: list[torch.Tensor], *, grad: bool = False) -> None:
        self._layouts = list(map(_layout, tensors))
        self._wanted = list(map(wants_gradient, tensors)) if grad else None
        self.is_known = _guards(tensors)
        self._of_modes = [self.is_known]

    def are_those_of(self, tensors: list[torch.Tensor]) -> bool:
        return self.is_known(*tensors) or self.recheck(tensors)

    def recheck(self, tensors: list[torch.Tensor]) -> bool:
        """Compare each tensor, unless guards that were made under other modes accept all."""
        known = next((each for each in self._of_modes if each(*tensors)), None)
        if known is None:
            wanted = self._wanted
            if list(map(_layout, tensors)) != self._layouts or (
                wanted is not None and list(map(wants_gradient, tensors)) != wanted
            ):
                return False
            known = _guards(tensors)
            self._of_modes = [known, *self._of_modes][:_MOST_MODES]
        self.is_known = known
        return True

    def differences(self, place: int, tensor: torch.Tensor) -> Iterator[tuple[str, object, object]]:
        """What of a tensor differs from the one that had its place: its name, what it was, what it is."""
        for name, before, now in zip(_NAMES, self._layouts[place], _layout(tensor), strict=True):
            if before != now:
                yield name, before, now


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
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
