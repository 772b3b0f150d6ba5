"""The arguments of a call -> their tensors in order, and everything else about them as a key."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch

TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = frozenset(
    {bool, int, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)


class Unwatchable(Exception):
    """An argument that a graph cannot be guarded against; the text is a sentence about it."""


def is_constant(value: object) -> bool:
    """Whether a value can never change behind a reference to it, and holds no tensor."""
    return type(value) in _CONSTANTS or isinstance(value, (float, enum.Enum))


def is_plain_constant(value: object) -> bool:
    """Whether a value is a constant of a type of Python's or torch's own."""
    return type(value) in _CONSTANTS or type(value) is float


def signature(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[object, list[torch.Tensor]]:
    """The key that two calls share when one graph serves both, and the tensors in order.

    The key holds the nesting with its types, every constant, and each tensor's shape, dtype, device
    and strides. Raises `Unwatchable` for what may hide a tensor or change unseen.
    """
    tensors: list[torch.Tensor] = []
    try:
        keys: list[object] = [_key(arg, tensors) for arg in args]
        for name, arg in kwargs.items():
            keys.append((name, _key(arg, tensors)))
    except (RuntimeError, NotImplementedError) as error:  # a sparse tensor has no strides
        raise Unwatchable(f"an input is of a layout that no graph is given ({error})") from error
    return (*keys, len(args), _repeats(tensors)), tensors


def _key(value: Any, tensors: list[torch.Tensor]) -> object:
    kind = type(value)
    if kind in TENSORS:
        tensors.append(value)
        return (value.shape, value.dtype, value.device, value.stride(), value.layout)
    if kind in _CONSTANTS:
        return (kind, value)
    if kind is float:
        return (kind, repr(value))  # a NaN equals itself here, and 0.0 differs from -0.0
    return _key_of_other(value, tensors)


def _key_of_other(value: Any, tensors: list[torch.Tensor]) -> object:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        raise Unwatchable(f"an input is a {kind.__name__}, a subclass of torch.Tensor")
    if isinstance(value, (tuple, list)):
        return (kind, tuple([_key(part, tensors) for part in value]))
    if isinstance(value, Mapping):
        return (kind, tuple([(name, _key(part, tensors)) for name, part in value.items()]))
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (kind, tuple([_key(getattr(value, field.name), tensors) for field in fields]))
    raise Unwatchable(
        f"an input is a {kind.__name__}, whose contents may change without being noticed"
    )


def _repeats(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Which inputs are one and the same tensor: code may ask `query is key`."""
    if len(tensors) < 2:
        return ()
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    if len(places) == len(tensors):
        return ()
    return tuple(places[id(tensor)] for tensor in tensors)
