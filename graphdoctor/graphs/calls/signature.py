"""The arguments of a call: its tensors in order, and a key of everything else to compare."""

from __future__ import annotations

import dataclasses
import enum
from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from graphdoctor.graphs.static_inputs import InputMismatch, check_inputs
from graphdoctor.target.state.attributes import attributes, slots_of
from graphdoctor.target.state.kinds import kind_of
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.target.target import Inputs

TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = frozenset(
    {bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)
_BY_TEXT = (float, complex)  # a NaN equals itself then, and 0.0 differs from -0.0
_A_TENSOR = "tensor"

Key = tuple[object, ...]
Parts = list[tuple[object, object]]
PartsOf = Callable[[object], Parts | None]


class Unwatchable(Exception):
    """An argument that a graph cannot be guarded against; the text is a sentence about it."""


def is_constant(value: object) -> bool:
    """Whether a value can never change behind a reference to it, and holds no tensor."""
    return type(value) in _CONSTANTS or isinstance(value, (float, complex, enum.Enum))


def is_plain_constant(value: object) -> bool:
    """Whether a value is a constant of a type of Python's or torch's own."""
    return type(value) in _CONSTANTS or type(value) in _BY_TEXT


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Key, list[torch.Tensor]]:
    """The key that two calls share when one graph serves both, and the tensors in order.

    The key holds the nesting with its types, every constant, each tensor's shape, dtype, device and
    strides, by which kernels and the outputs' strides are chosen, whether it is a conjugate or negative
    view, and which tensors are one and the same: code may ask `query is key`. Raises `Unwatchable` for
    what may hide a tensor or change unseen.
    """
    tensors: list[torch.Tensor] = []
    structure = [structure_of(arg, tensors, parts_of_argument) for arg in args]
    for name, arg in kwargs.items():
        structure.append((name, structure_of(arg, tensors, parts_of_argument)))
    for tensor in tensors:
        if tensor.layout != torch.strided:  # a copy into it would be new memory
            raise Unwatchable(
                f"an input is a tensor of layout {tensor.layout}: no graph is given one"
            )
    looks = tuple(
        [(t.shape, t.dtype, t.device, t.stride(), t.is_conj(), t.is_neg()) for t in tensors]
    )
    return (tuple(structure), len(args), looks, repeats(tensors)), tensors


def structure_of(value: Any, tensors: list[torch.Tensor], parts_of: PartsOf) -> object:
    """A value's types, keys and constants; its tensors are added to `tensors`.

    `parts_of` takes apart what is neither a tuple, a list nor a dictionary.
    """
    kind = type(value)
    if kind in TENSORS:
        tensors.append(value)
        return _A_TENSOR
    if kind in _CONSTANTS:
        return (kind, value)
    if kind in _BY_TEXT:
        return (kind, repr(value))
    if kind is tuple or kind is list:
        return (kind, tuple([structure_of(part, tensors, parts_of) for part in value]))
    if kind is dict:
        parts = value.items()
    elif isinstance(value, enum.Enum):
        return (kind, value.name, repr(value.value))
    elif isinstance(value, torch.Tensor):
        raise Unwatchable(f"an input is a {kind.__name__}, a subclass of torch.Tensor")
    elif (parts := parts_of(value)) is None:
        raise Unwatchable(
            f"an input is a {kind.__name__}, whose contents may change without being noticed"
        )
    return (
        kind,
        tuple([(_key(key), structure_of(part, tensors, parts_of)) for key, part in parts]),
    )


def _key(key: object) -> object:
    """A key of a mapping, with its type: 1, 1.0 and True are one key to a dictionary."""
    if type(key) is str:
        return key
    hidden: list[torch.Tensor] = []
    found = structure_of(key, hidden, parts_of_argument)
    if hidden:
        raise Unwatchable("an input is a mapping with a tensor as a key, whose place none can take")
    return found


def parts_of_argument(value: object) -> Parts | None:
    """What is in a mapping, a dataclass or a sequence, attributes beside its items included.

    None for a leaf, and for a mapping of the user's that cannot be made anew around other tensors,
    because its class says itself how it is copied.
    """
    covered: set[str] = set()
    parts: Parts
    if isinstance(value, Mapping):
        # Of another one a copy that shares no content cannot be made without the user's code.
        if not isinstance(value, (dict, UserDict)) and (
            not isinstance(value, MutableMapping)
            or kind_of(value).open(value, into_objects=False) is None
        ):
            return None
        parts = list(value.items())
        covered = {"data"} if type(value) is UserDict else covered
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        covered = {field.name for field in dataclasses.fields(value)}
        parts = [(name, getattr(value, name)) for name in sorted(covered) if hasattr(value, name)]
    elif isinstance(value, (tuple, list)):
        parts = list(enumerate(value))
    else:
        return None
    beside = [*attributes(value).items(), *slots_of(value)]
    return parts + [((".", name), part) for name, part in beside if name not in covered]


def parts_of_output(value: object) -> Parts | None:
    """The same, and of an object of the user's that carries tensors, its attributes."""
    parts = parts_of_argument(value)
    return list(attributes(value).items()) if parts is None and _carries_tensors(value) else parts


def _carries_tensors(value: object) -> bool:
    if isinstance(value, (torch.nn.Module, type)) or list(slots_of(value)):
        return False
    return any(isinstance(part, torch.Tensor) for part in attributes(value).values())


def is_faithful(key: Key, tensors: Sequence[torch.Tensor], copied: Inputs) -> bool:
    """Whether a copy of a call is the same call, with every tensor of it on memory of its own.

    Raises `Unwatchable` as `signature` does.
    """
    key_of_copy, copies = signature(copied.args, copied.kwargs)
    own = set(map(id, tensors))
    return key == key_of_copy and not any(id(tensor) in own for tensor in copies)


def distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once, in order."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def repeats(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Where each tensor stands first; nothing where none stands twice."""
    if len(tensors) < 2:
        return ()
    first: dict[int, int] = {}
    places = [first.setdefault(id(tensor), place) for place, tensor in enumerate(tensors)]
    return tuple(places) if len(first) < len(places) else ()


def mismatch(captured: Inputs, found: Inputs, *, grad: bool = False) -> str:
    """The first difference between two calls, in a sentence; with `grad`, in wanted gradients too."""
    try:
        check_inputs(captured, found)
    except InputMismatch as difference:
        return str(difference)
    old, new = input_leaves(captured), input_leaves(found)
    for path, before in old.items():
        now = new[path]
        if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
            continue
        if before.stride() != now.stride():
            return (
                f"The strides of {path} changed from {before.stride()} to {now.stride()}: "
                "kernels and the strides of outputs are chosen by them."
            )
        if (before.is_conj(), before.is_neg()) != (now.is_conj(), now.is_neg()):
            return f"{path} is a conjugate or negative view in one of the two calls only."
        if grad and before.requires_grad != now.requires_grad:
            return (
                f"The requires_grad of {path} changed from {before.requires_grad} "
                f"to {now.requires_grad}: the backward pass is captured for one of them."
            )
    return "The nesting of the inputs changed, or which of them are one and the same tensor."
