"""Nested inputs and outputs -> their leaves by path, and the same nesting around other leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping

import torch

from graphdoctor.target.target import Inputs

Leaves = dict[str, object]


def input_leaves(inputs: Inputs) -> Leaves:
    """ "inputs[0]" for a positional argument, "inputs.mask" for a keyword, and so on inwards."""
    found: Leaves = {}
    for index, arg in enumerate(inputs.args):
        found.update(leaves(arg, f"inputs[{index}]"))
    for name, arg in inputs.kwargs.items():
        found.update(leaves(arg, f"inputs.{name}"))
    return found


def leaves(value: object, path: str) -> Leaves:
    """Every leaf below `path`, in order: "output", "output[0]", "output.loss"."""
    parts = _parts(value)
    if parts is None:
        return {path: value}
    found: Leaves = {}
    for step, part in parts:
        found.update(leaves(part, path + step))
    return found


def map_inputs(change: Callable[[object], object], inputs: Inputs) -> Inputs:
    """The same call with every leaf changed."""
    args = tuple(map_leaves(change, arg) for arg in inputs.args)
    return Inputs(args, {name: map_leaves(change, arg) for name, arg in inputs.kwargs.items()})


def map_leaves(change: Callable[[object], object], value: object) -> object:
    """The same nesting, of the same types, with every leaf changed; `value` stays as it is."""
    if isinstance(value, tuple):
        parts = [map_leaves(change, part) for part in value]
        kind: Callable[..., object] = type(value)  # a named tuple takes its parts one by one
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if isinstance(value, list):
        return type(value)(map_leaves(change, part) for part in value)
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)
        for key, part in value.items():
            mapping[key] = map_leaves(change, part)
        return mapping
    fields = _fields(value)
    if fields is None:
        return change(value)
    made = copy.copy(value)
    for name, part in fields.items():
        object.__setattr__(made, name, map_leaves(change, part))
    return made


def _parts(value: object) -> Iterator[tuple[str, object]] | None:
    """The parts of a container, each with its step in a path; None for a leaf."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{name}", part) for name, part in zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list)):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, Mapping):
        return ((_key_step(key), part) for key, part in value.items())
    fields = _fields(value)
    return None if fields is None else ((f".{name}", part) for name, part in fields.items())


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _fields(value: object) -> dict[str, object] | None:
    """The parts of a dataclass, or of an object of the user's that carries tensors."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return None
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and any(isinstance(part, torch.Tensor) for part in own.values()):
        return dict(own)
    return None
