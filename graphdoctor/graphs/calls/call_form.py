"""The form of a call that a graph served: whether another call has it, compared in one call into C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.calls.signature import TENSORS, is_plain_constant
from graphdoctor.target.state.attributes import slots_of


class CallForm(NamedTuple):
    """What calls of one form share: the arguments' number, names and nesting, constants, and tensors.

    `check(*tensors)` are dynamo's guards, which compare types, shapes, strides, dtypes, devices, dispatch keys,
    required gradients, and whether two are one tensor. They raise TypeError for another number of tensors. So
    a call of this form has the same key, and no gradients of its inputs; other calls may have the same key too.
    `tensors_of(args, kwargs)` gives the tensors in order, None if nesting, constants or names differ. If `is_plain`,
    the positional arguments are the tensors.
    """

    check: Callable[..., bool]
    is_plain: bool
    tensors_of: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[torch.Tensor] | None]


Reads = Callable[[Any, list[torch.Tensor]], bool]
"""Adds the tensors of an argument to a list; False if it is not like the one before."""


class NoForm(Exception):
    """An argument that has no form."""


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm | None:
    """The form of a call of a model; None if it has none.

    That is so if there is no tensor, one comes twice or requires gradients, if arguments are objects, and if torch
    has no such guards.
    """
    try:
        form = form_by(list(map(reads_of, (*args, *kwargs.values()))), args, kwargs)
    except NoForm:
        return None
    return form if form is not None and form.tensors_of(args, dict(kwargs)) else None


def form_by(
    readers: Sequence[Reads], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallForm | None:
    """The form of a call whose arguments, in order, are read by these functions."""
    names, count = tuple(kwargs), len(args)

    def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[torch.Tensor] | None:
        if len(args) != count or (*kwargs,) != names:
            return None
        found: list[torch.Tensor] = []
        for read, value in zip(readers, (*args, *kwargs.values()), strict=True):
            if not read(value, found):
                return None
        return found

    tensors = tensors_of(args, dict(kwargs))
    if tensors is None or len(set(map(id, tensors))) < len(tensors):
        return None
    if any(tensor.requires_grad for tensor in tensors):
        return None  # under no_grad, guards may not tell a tensor that requires gradients
    is_plain = not kwargs and [*map(id, args)] == [*map(id, tensors)]
    if not tensors:
        return CallForm(lambda: True, is_plain, tensors_of)
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not check(*tensors):
            return None
    except Exception:  # another torch's guards want other arguments
        return None
    if entered() is not None:
        check = _and_devices(check, list(tensors))
    return CallForm(check, is_plain, tensors_of)


def reads_of(value: object) -> Reads:
    """A function that reads arguments like this one. Raises `NoForm` for an object."""
    kind = type(value)
    if kind in TENSORS:
        return _read_tensor
    if is_plain_constant(value):
        return _reads_constant(value)
    if isinstance(value, (tuple, list)) and _has_items_only(value):
        return _reads_sequence(kind, value)
    if isinstance(value, dict) and kind is dict and all(type(key) is str for key in value):
        keys, items = [*value], _reads_sequence(tuple, (*value.values(),))
        return lambda now, found: (
            type(now) is dict and [*now] == keys and items((*now.values(),), found)
        )
    raise NoForm


def _reads_sequence(kind: object, value: Sequence[object]) -> Reads:
    parts, count = list(map(reads_of, value)), len(value)

    def read_tensors(now: Any, found: list[torch.Tensor]) -> bool:
        if type(now) is not kind or len(now) != count:
            return False
        found.extend(now)
        return True

    def read_parts(now: Any, found: list[torch.Tensor]) -> bool:
        if type(now) is not kind or len(now) != count:
            return False
        return all([read(part, found) for read, part in zip(parts, now, strict=True)])

    return read_tensors if all(each is _read_tensor for each in parts) else read_parts


def is_the_very(value: object) -> Reads:
    """A function that reads only this object."""
    return lambda now, found: now is value


def _reads_constant(value: object) -> Reads:
    kind, text = type(value), repr(value)
    if kind in (float, complex):  # by text, as in keys: a NaN is equal, 0.0 and -0.0 are not
        return lambda now, found: now is value or (type(now) is kind and repr(now) == text)
    return lambda now, found: now is value or (type(now) is kind and now == value)


def _read_tensor(now: Any, found: list[torch.Tensor]) -> bool:
    found.append(now)  # its type is compared with all the rest of it
    return True


def _has_items_only(value: object) -> bool:
    """Whether a tuple or list has items and no attributes, as a named tuple has."""
    kind = type(value)
    return kind in (tuple, list) or (kind.__dictoffset__ == 0 and not list(slots_of(value)))


def _and_devices(check: Callable[..., bool], tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """An emulated device is none to C++, so it is compared in Python."""
    devices = [tensor.device for tensor in tensors]
    return lambda *given: check(*given) and [tensor.device for tensor in given] == devices
