"""A module at the time of its capture -> whether a graph of it still holds: addresses, flags, attributes, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter, getitem, is_
from typing import Any

import torch

from graphdoctor.graphed.arguments import PLAIN
from graphdoctor.graphed.hooks import all_hooks, has_global_hooks

_wants_gradient = attrgetter("requires_grad")
# In C where this torch has it: hundreds of parameters are looked at before each replay.
_same_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)

_Slot = tuple[dict[str, Any], str, Any, str]  # where an object is held, and how people name it


class Guard:
    """What a captured forward took from its module, below all hooks of the module itself.

    Attributes of the module and of those inside it are watched if they are tensors, modules, or
    plain values; what lies deeper, as in a configuration object, is not.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        held = list(_objects(module))
        self._dicts, self._keys = [each[0] for each in held], [each[1] for each in held]
        self._held = [each[2] for each in held]
        self._names = [each[3] for each in held]
        plain = list(_plain_values(module))
        self._plain_dicts, self._plain_keys = [e[0] for e in plain], [e[1] for e in plain]
        self._values = [each[2] for each in plain]
        self._plain_names = [each[3] for each in plain]
        self._hooks = [hooks for inner in list(module.modules())[1:] for hooks in all_hooks(inner)]
        self._tensors = [t for t in self._held if isinstance(t, torch.Tensor)]
        self._addresses: list[int | None] = [t.data_ptr() for t in self._tensors]
        self._every = list(range(len(self._tensors)))
        self._wanted = list(map(_wants_gradient, self._tensors))

    def holds(self, grad: bool) -> bool:
        """Whether nothing has changed. Fast: it runs before each replay."""
        if any(self._hooks) or has_global_hooks():
            return False
        try:
            if list(map(getitem, self._plain_dicts, self._plain_keys)) != self._values:
                return False
            if not all(map(is_, map(getitem, self._dicts, self._keys), self._held)):
                return False
        except KeyError:
            return False
        if grad and list(map(_wants_gradient, self._tensors)) != self._wanted:
            return False
        return self._are_in_place()

    def _are_in_place(self) -> bool:
        if _same_addresses is not None:
            return bool(_same_addresses(self._tensors, self._addresses, self._every))
        return [t.data_ptr() for t in self._tensors] == self._addresses

    def change(self, grad: bool) -> str:
        """What has changed, in words; for a guard that does not hold."""
        for owner, key, was, name in zip(
            self._plain_dicts, self._plain_keys, self._values, self._plain_names, strict=True
        ):
            if key not in owner or owner[key] != was:
                return f"{name} changed from {was!r} to {owner.get(key)!r}"
        for owner, key, was, name in zip(
            self._dicts, self._keys, self._held, self._names, strict=True
        ):
            if owner.get(key) is not was:
                return f"{name} is another object than the captured one"
        for index, tensor in enumerate(self._tensors):
            if tensor.data_ptr() != self._addresses[index]:
                return f"{self._name_of(tensor)} lies at another address than the captured one"
            if grad and tensor.requires_grad != self._wanted[index]:
                return f"requires_grad of {self._name_of(tensor)} changed"
        return "a hook was registered inside it"

    def _name_of(self, tensor: torch.Tensor) -> str:
        found = (n for held, n in zip(self._held, self._names, strict=True) if held is tensor)
        return next(found, "a tensor")


def _objects(module: torch.nn.Module) -> Iterator[_Slot]:
    """Tensors and modules, each where it is held."""
    for path, inner in module.named_modules():
        for holder in (inner._parameters, inner._buffers, inner._modules, inner.__dict__):
            for key, value in holder.items():
                if isinstance(value, (torch.Tensor, torch.nn.Module)):
                    yield holder, key, value, _joined(path, key)


def _plain_values(module: torch.nn.Module) -> Iterator[_Slot]:
    """Flags and numbers, and copies of flat lists of them, whose content may change in place."""
    for path, inner in module.named_modules():
        for key, value in inner.__dict__.items():
            if isinstance(value, PLAIN):
                yield inner.__dict__, key, value, _joined(path, key)
            elif type(value) in (list, tuple) and all(isinstance(part, PLAIN) for part in value):
                yield inner.__dict__, key, type(value)(value), _joined(path, key)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
