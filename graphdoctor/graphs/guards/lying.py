"""Tensors at a capture -> whether each lies where it lay, and as it lay: a graph reads addresses and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from graphdoctor.graphs.addresses import are_at
from graphdoctor.graphs.guards.written_out import Question, all_of

_address = torch.Tensor.data_ptr
_MOST_MODES = 4  # between which calls may change
_FEW = 16  # asked one by one, which is quicker for so many


class Lying:
    """Where tensors lie, their shapes, strides and dtypes. Keeps their memory, so that no graph reads what was freed.

    `data_ptr` is asked of each, and dynamo's guards compare the rest in one call into C++. Those also see
    gradients, inference mode and autocast, which do not count here: where they say no, those of other modes are asked,
    and then a look decides and makes some under the modes of now.
    """

    def __init__(self, paths: list[str], tensors: list[torch.Tensor]) -> None:
        self.paths, self._tensors = paths, tensors
        self._addresses: list[int | None] = list(map(_address, tensors))
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._ways = list(map(_way, tensors))
        self.is_known = _guards(tensors)
        self._of_modes = [self.is_known]

    @property
    def question(self) -> Question:
        """Whether all lie as they did."""
        if not self._tensors:
            return Question("True", {})
        at, given = self._asks_addresses()
        known = "(lying.is_known(*every_tensor) or lying.look())"
        all_given = {**given, "lying": self, "tensors": self._tensors}
        # A list would be copied into a tuple for the call.
        return Question(f"{at} and {known}", {**all_given, "every_tensor": tuple(self._tensors)})

    def _asks_addresses(self) -> tuple[str, dict[str, object]]:
        if len(self._tensors) > _FEW:
            given = {"addresses": self._addresses, "every": list(range(len(self._tensors)))}
            return "are_at(tensors, addresses, every)", {"are_at": are_at, **given}
        terms: list[str] = []
        few: dict[str, object] = {}
        for place, (tensor, address) in enumerate(zip(self._tensors, self._addresses, strict=True)):
            terms.append(f"address_of{place}() == address{place}")
            few |= {f"address_of{place}": tensor.data_ptr, f"address{place}": address}
        return all_of(terms), few

    def look(self) -> bool:
        """Ask each tensor, unless what was made under other modes knows them."""
        known = next((each for each in self._of_modes if each(*self._tensors)), None)
        if known is None:
            if list(map(_way, self._tensors)) != self._ways:
                return False
            known = _guards(self._tensors)
            self._of_modes = [known, *self._of_modes][:_MOST_MODES]
        self.is_known = known
        return True

    def differences(self) -> Iterator[str]:
        for path, tensor, address, way in zip(
            self.paths, self._tensors, self._addresses, self._ways, strict=True
        ):
            if tensor.data_ptr() != address:
                yield f"{path} lies in other memory than when it was captured"
            for name, before, now in zip(_NAMES, way, _way(tensor), strict=True):
                if before != now:
                    yield f"the {name} of {path} changed from {before} to {now}"


_NAMES = ("shape", "strides", "dtype", "layout")


def _way(tensor: torch.Tensor) -> tuple[object, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(tensor.shape), strides, tensor.dtype, tensor.layout


def _guards(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return check if check(*tensors) else _unknown
    except Exception:  # another torch's guards want other arguments
        return _unknown


def _unknown(*tensors: torch.Tensor) -> bool:
    return False
