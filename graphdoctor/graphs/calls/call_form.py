"""A call that a graph served -> whether another is of the same form, asked in one call into C++."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.calls.signature import TENSORS, is_plain_constant

Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
TensorsOf = Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[torch.Tensor, ...] | None]


class CallForm:
    """The arguments' number and names, constants by identity, and tensors by dynamo's guards.

    These tell types, shapes, strides, dtypes, devices, dispatch keys, wanted gradients, and whether
    two are one tensor; so a call of this form has the same key, and no gradients of its inputs. Other
    calls may have the same key too: that takes a closer look.
    """

    __slots__ = (
        "_check",
        "_constants",
        "_count",
        "_names",
        "_pick",
        "_pick_constants",
        "tensors_of",
    )

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], check: Any) -> None:
        values = (*args, *kwargs.values())
        tensors = [place for place, value in enumerate(values) if type(value) in TENSORS]
        others = [place for place, value in enumerate(values) if type(value) not in TENSORS]
        self._count = len(args)
        self._names = tuple(kwargs)
        self._pick = _picker(tensors)
        self._pick_constants = _picker(others)
        self._constants = self._pick_constants(values)
        self._check: Callable[..., bool] = check
        # The tensors of a call of this form, in order; None for any other call.
        is_plain = not others and not kwargs
        self.tensors_of: TensorsOf = _plainly(len(args), check) if is_plain else self._tensors_of

    def _tensors_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...] | None:
        if len(args) != self._count:
            return None
        if kwargs or self._names:
            if tuple(kwargs) != self._names:
                return None
            args = (*args, *kwargs.values())
        if self._constants:
            found = self._pick_constants(args)
            if not all(map(operator.is_, found, self._constants)):
                return None
            args = self._pick(args)
        return args if self._check(*args) else None


def _plainly(count: int, check: Callable[..., bool]) -> TensorsOf:
    """For tensors alone, by position: nothing but the guards has to be asked."""

    def tensors_of(
        args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...] | None:
        return args if len(args) == count and not kwargs and check(*args) else None

    return tensors_of


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm | None:
    """The form of a call; None where it has none.

    That is so where arguments are nested, or one tensor comes twice or wants gradients, and where
    torch has no such guards.
    """
    values = (*args, *kwargs.values())
    tensors = [value for value in values if type(value) in TENSORS]
    others = [value for value in values if type(value) not in TENSORS]
    if not tensors or not all(map(is_plain_constant, others)):
        return None
    if len(set(map(id, tensors))) < len(tensors) or any(t.requires_grad for t in tensors):
        return None  # under no_grad, guards may not tell a tensor that wants gradients
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not check(*tensors):
            return None
    except Exception:  # another torch's guards want other arguments
        return None
    if entered() is not None:
        check = _and_devices(check, tensors)
    return CallForm(args, kwargs, check)


def _and_devices(check: Callable[..., bool], tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """An emulated device is none to C++, so it is asked for in Python."""
    devices = [tensor.device for tensor in tensors]
    return lambda *given: check(*given) and [tensor.device for tensor in given] == devices


def _picker(places: list[int]) -> Pick:
    """A function that takes the entries at these places out of a tuple."""
    if len(places) == 1:
        (only,) = places
        return lambda values: (values[only],)
    return operator.itemgetter(*places) if places else lambda values: ()
