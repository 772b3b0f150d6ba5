"""The arguments of a call -> its tensors in order, and all that a graph freezes, as values to compare."""

from __future__ import annotations

import dataclasses
import enum
from collections import UserDict
from collections.abc import Mapping
from typing import Any

import torch

# What can be compared by value, and cannot change behind a captured graph's back.
PLAIN = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_A_TENSOR = ("tensor",)


class Flat:
    """A call taken apart. `tensors` are its tensors in order, `frozen` everything else.

    `unknown` names the type of an argument whose content cannot be compared, or is "".
    """

    __slots__ = ("frozen", "tensors", "unknown")

    def __init__(self) -> None:
        self.frozen: list[object] = []
        self.tensors: list[torch.Tensor] = []
        self.unknown = ""

    def add(self, value: Any) -> None:
        """Take one value apart, with everything inside it."""
        kind = type(value)
        if kind in _TENSORS:
            self.tensors.append(value)
            self.frozen.append(_A_TENSOR)
        elif kind in PLAIN:
            self.frozen.append((kind, value.hex() if kind is float else value))
        elif kind is tuple or kind is list:
            self.frozen.append((kind, len(value)))
            for part in value:
                self.add(part)
        elif isinstance(value, enum.Enum):
            self.frozen.append((kind, value))
        else:
            self._add_fields(kind, value)

    def _add_fields(self, kind: type, value: Any) -> None:
        fields = fields_of(value)
        if fields is None:
            self.unknown = self.unknown or kind.__name__
            self.frozen.append(object())  # equals nothing
            return
        self.frozen.append((kind, tuple(fields)))
        for part in fields.values():
            self.add(part)


def fields_of(value: object) -> Mapping[Any, Any] | None:
    """The parts of a mapping, a dataclass, a named tuple or another sequence; None for a leaf.

    Mappings of the user's own, which are neither dict nor UserDict, share their content with a copy.
    """
    if isinstance(value, (dict, UserDict)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    return None


def flat_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Flat:
    """Take a call apart."""
    flat = Flat()
    for arg in args:
        flat.add(arg)
    if kwargs:
        for name, arg in kwargs.items():
            flat.frozen.append(name)
            flat.add(arg)
    return flat


def signature_of(flat: Flat, grad: bool) -> tuple[object, ...]:
    """What must be equal for a graph to serve a call; hashable.

    Strides count: kernels are chosen by them, and the outputs' strides follow them.
    """
    return (
        *mode(grad),
        tuple(flat.frozen),
        tuple(
            (t.shape, t.dtype, t.device, t.layout, _stride(t), grad and t.requires_grad)
            for t in flat.tensors
        ),
        repeats(flat.tensors),
    )


def distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once, in order."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def repeats(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Where each tensor stands first; nothing where none stands twice."""
    if len(tensors) < 2:
        return ()
    first: dict[int, int] = {}
    places = [first.setdefault(id(tensor), place) for place, tensor in enumerate(tensors)]
    return tuple(places) if len(first) < len(places) else ()


def mode(grad: bool) -> tuple[object, ...]:
    """Torch's switches that decide what a forward does."""
    autocast = torch.is_autocast_enabled("cuda")
    return grad, autocast, torch.get_autocast_dtype("cuda") if autocast else None


def _stride(tensor: torch.Tensor) -> object:
    return tensor.stride() if tensor.layout == torch.strided else None
