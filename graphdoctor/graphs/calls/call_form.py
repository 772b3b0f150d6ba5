"""The form of a call that a graph served: whether another call has it, compared in one call into C++."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.calls.signature import TENSORS, is_plain_constant


class CallForm(NamedTuple):
    """What calls of one form share: the arguments' number and names, constants by identity, and tensors.

    `check(*tensors)` are dynamo's guards, which compare types, shapes, strides, dtypes, devices, dispatch keys,
    required gradients, and whether two are one tensor. They raise TypeError for another number of tensors. So
    a call of this form has the same key, and no gradients of its inputs; other calls may have the same key too.
    `tensors_of(args, kwargs)` gives the tensors in order, None if constants or names differ. If `is_plain`, the
    positional arguments are the tensors.
    """

    check: Callable[..., bool]
    is_plain: bool
    tensors_of: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[torch.Tensor] | None]


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm | None:
    """The form of a call; None if it has none.

    That is so if arguments are nested, or one tensor comes twice or requires gradients, and if torch has no such
    guards.
    """
    values = (*args, *kwargs.values())
    tensors = [value for value in values if type(value) in TENSORS]
    others = [value for value in values if type(value) not in TENSORS]
    if not tensors or not all(map(is_plain_constant, others)):
        return None
    if len(set(map(id, tensors))) < len(tensors) or any(t.requires_grad for t in tensors):
        return None  # under no_grad, guards may not tell a tensor that requires gradients
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not check(*tensors):
            return None
    except Exception:  # another torch's guards want other arguments
        return None
    if entered() is not None:
        check = _and_devices(check, tensors)
    return CallForm(check, not kwargs and not others, _tensors_of(args, kwargs))


def _tensors_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Sequence[torch.Tensor] | None]:
    values, names, count = (*args, *kwargs.values()), tuple(kwargs), len(args)
    places = [place for place, value in enumerate(values) if type(value) in TENSORS]
    constants = [None if place in places else value for place, value in enumerate(values)]

    def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor] | None:
        if len(args) != count or (*kwargs,) != names:
            return None
        found = [*args, *kwargs.values()]
        tensors = [found[place] for place in places]
        for place in places:
            found[place] = None
        return tensors if all(map(operator.is_, found, constants)) else None

    return tensors_of


def _and_devices(check: Callable[..., bool], tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """An emulated device is none to C++, so it is compared in Python."""
    devices = [tensor.device for tensor in tensors]
    return lambda *given: check(*given) and [tensor.device for tensor in given] == devices
